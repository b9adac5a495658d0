// The table of all queries: state, rate, lag and delay, each with the newest values as a small line.
// @ts-check
/** @import { Column, QueryOfRun } from "../../types" */
import { html } from "./html.js";
import { delay, lagRecords, lagSeconds, rankOf, rowsPerSecond, unmeasured } from "./facts.js";
import { ago, duration, many, rate } from "./format.js";
import { href } from "./route.js";
import { State, breakable } from "./marks.js";
import { Sparkline } from "./chart.js";
import { seriesOf } from "./series.js";
import { Table } from "./table.js";

/** @type {(name: "p50" | "p95" | "p99") => Column<QueryOfRun>} */
const percentile = (name) => ({
  title: `Delay ${name.toUpperCase()}`,
  number: true,
  value: ({ query }) => delay(query, name),
  cell: ({ query }) =>
    html`${duration(delay(query, name))}${name === "p99" && unmeasured(query) && html`<div class="quiet reasons">${unmeasured(query)}</div>`}`,
});

/** @param {QueryOfRun} row */
function lag({ query }) {
  const [seconds, records] = [lagSeconds(query), lagRecords(query)];
  return html`${duration(seconds)}${(records || (records === 0 && seconds === null)) && html`<div class="quiet">${many(records, "record")}</div>`}`;
}

/** @type {(now: string) => Column<QueryOfRun>[]} */
const columns = (now) => [
  {
    title: "Query",
    head: true,
    value: ({ query }) => query.name,
    cell: ({ run, query }) =>
      html`<a href=${href("pipelines", [run.id], { query: query.name })}>${breakable(query.name)}</a>`,
  },
  {
    title: "State",
    value: ({ state }) => rankOf(state),
    cell: ({ state, query }) =>
      html`<${State} state=${state} />${query.waits_for && html`<span class="quiet"> ${query.waits_for}</span>`}`,
  },
  {
    title: "Rows/s",
    number: true,
    value: ({ query }) => rowsPerSecond(query),
    cell: ({ query }) => rate(rowsPerSecond(query)),
  },
  {
    title: "Rate over time",
    cell: ({ run, query }) =>
      html`<${Sparkline} values=${seriesOf(run, query).rate} label=${`Rows a second of ${query.name}, now ${rate(rowsPerSecond(query))}`} />`,
  },
  { title: "Lag", number: true, value: ({ query }) => lagSeconds(query) ?? lagRecords(query), cell: lag },
  {
    title: "Lag over time",
    cell: ({ run, query }) =>
      html`<${Sparkline} values=${seriesOf(run, query).lag} label=${`Lag of ${query.name}, now ${duration(lagSeconds(query))}`} />`,
  },
  percentile("p50"),
  percentile("p95"),
  percentile("p99"),
  {
    title: "Last commit",
    number: true,
    value: ({ query }) => query.last_commit ?? null,
    cell: ({ query }) => ago(query.last_commit, now),
  },
];

/** @param {{ queries: QueryOfRun[], now: string }} props */
export const QueryTable = ({
  queries,
  now,
}) => html`<${Table} caption="Queries, worst first. P50, P95 and P99 are delays from the event to the sink's acknowledgement."
  columns=${columns(now)} rows=${queries} keyOf=${(/** @type {QueryOfRun} */ { run, query }) => `${run.id} ${query.name}`} first=${{ title: "State", down: false }}
  rowClass=${(/** @type {QueryOfRun} */ { state }) => `is-${state}`} empty="No query fits the filter." />`;
