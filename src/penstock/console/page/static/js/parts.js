// The parts of a query as tables: sources, sinks, states, lookups; and its errors, whole and copyable.
// @ts-check
/** @import { Column, Counts, GraphNode, Lookup, Measured, OperatorState, RunError, Sink, Source, StreamQuery } from "../../types" */
import { html } from "./html.js";
import { bytes, count, duration, time } from "./format.js";
import { isTopic, topicPage } from "./kafka.js";
import { breakable } from "./marks.js";
import { Whole } from "./notices.js";
import { Table } from "./table.js";

/** @param {Counts | undefined} counts */
const sum = (counts) => Object.values(counts ?? {}).reduce((all, value) => all + value, 0);
/** @param {Counts | undefined} counts */
const reasons = (counts) =>
  Object.entries(counts ?? {})
    .map(([reason, number]) => `${reason}: ${count(number)}`)
    .join(", ");
/**
 * A column of numbers.
 * @template Row
 * @param {string} title
 * @param {(row: Row) => Measured} value
 * @returns {Column<Row>}
 */
const number = (title, value, format = count) => ({
  title,
  number: true,
  value,
  cell: (row) => format(value(row)),
});
/**
 * A column of counts by reason.
 * @template Row
 * @param {string} title
 * @param {(row: Row) => Counts | undefined} counts
 * @returns {Column<Row>}
 */
const byReason = (title, counts) => ({
  title,
  number: true,
  value: (row) => sum(counts(row)),
  cell: (row) =>
    html`${count(sum(counts(row)))}${sum(counts(row)) > 0 && html`<div class="quiet reasons">${reasons(counts(row))}</div>`}`,
});

/**
 * The column of names, which lead to their pages.
 * @template {{ name: string, page?: string | null }} Row
 * @param {string} title
 * @returns {Column<Row>}
 */
const name = (title) => ({
  title,
  head: true,
  value: (row) => row.name,
  cell: (row) => (row.page ? html`<a href=${row.page}>${breakable(row.name)}</a>` : breakable(row.name)),
});

/** @typedef {{ page?: string | null }} WithPage */
/** @type {Column<Source & WithPage>[]} */
const SOURCES = [
  name("Source"),
  number("Lag", (row) => row.lag_seconds, duration),
  number("Lag in records", (row) => row.lag_records),
  number("Deleted in", (row) => row.retention_left_seconds, duration),
  number("Rows", (row) => row.rows_total),
  byReason("Bad records", (row) => row.bad_records),
];
const PERCENTILES = /** @type {const} */ (["p50", "p95", "p99"]);
/** @type {Column<Sink & WithPage>[]} */
const SINKS = [
  name("Sink"),
  number("Rows", (row) => row.rows_total),
  number("Bytes", (row) => row.bytes_total, bytes),
  ...PERCENTILES.map((which) => ({
    title: `Delay ${which.toUpperCase()}`,
    number: true,
    value: (/** @type {Sink} */ row) => row.delay?.[which],
    cell: (/** @type {Sink} */ row) =>
      html`${duration(row.delay?.[which])}${which === "p99" && row.delay?.unknown && html`<div class="quiet reasons">${row.delay.unknown}</div>`}`,
  })),
  number("Retries", (row) => row.retries_total),
  byReason("Failures", (row) => row.failures),
  byReason("Dead letters", (row) => row.dead_letters),
];
/** @type {Column<OperatorState>[]} */
const STATES = [
  { title: "State", head: true, value: (row) => row.operator, cell: (row) => breakable(row.operator) },
  number("Rows", (row) => row.rows),
  number("Memory", (row) => row.memory_bytes, bytes),
  number("Disk", (row) => row.disk_bytes, bytes),
  number("Late rows", (row) => row.late_rows_total),
];
/** @param {Lookup} row */
const share = (row) => (row.rows_total ? (row.hits_total ?? 0) / row.rows_total : null);
/** @type {Column<Lookup>[]} */
const LOOKUPS = [
  name("Lookup"),
  number("Rows", (row) => row.rows_total),
  number("Found", (row) => row.hits_total),
  {
    title: "Found of all",
    number: true,
    value: share,
    cell: (row) => {
      const found = share(row);
      return found === null ? "–" : `${Math.round(found * 100)} %`;
    },
  },
  number("Waited", (row) => row.wait_seconds_total, duration),
];

/**
 * @template {{ name?: string, operator?: string }} Row
 * @param {{ id: string, title: string, columns: Column<Row>[], rows?: Row[], note?: string }} props
 */
function Part({ id, title, columns, rows, note }) {
  if (!rows?.length) return null;
  return html`<section class="card" aria-labelledby=${id}>
    <div class="heading"><h2 id=${id}>${title}</h2>${note && html`<span class="quiet">${note}</span>`}</div>
    <${Table} caption=${title} columns=${columns} rows=${rows} keyOf=${(/** @type {Row} */ row) => row.name ?? row.operator} />
  </section>`;
}

/**
 * The sources or sinks of a query, with the pages of their topics.
 * @template {{ node?: string }} P
 * @param {P[] | undefined} rows
 * @param {GraphNode[]} nodes
 */
function withPages(rows, nodes) {
  const topics = new Map(nodes.filter(isTopic).map((node) => [node.id, topicPage(node)]));
  return rows?.map((row) => ({ ...row, page: topics.get(row.node ?? "") }));
}

/** @param {{ query: StreamQuery, nodes: GraphNode[] }} props */
export const Parts = ({ query, nodes }) => html`
  <${Part} id="sources" title="Sources" columns=${SOURCES} rows=${withPages(query.sources, nodes)} note="deleted in: until Kafka deletes the oldest record that is not read yet" />
  <${Part} id="sinks" title="Sinks" columns=${SINKS} rows=${withPages(query.sinks, nodes)} note="delay: from the event to the acknowledgement" />
  <${Part} id="states" title="State" columns=${STATES} rows=${query.states} />
  <${Part} id="lookups" title="Lookups" columns=${LOOKUPS} rows=${query.lookups} />
`;

/**
 * The newest error first.
 * @param {{ errors: RunError[] }} props
 */
export function Errors({ errors }) {
  if (!errors.length) return null;
  return html`<section class="card" aria-labelledby="errors">
    <h2 id="errors">${errors.length > 1 ? `The last ${count(errors.length)} errors` : "The last error"}</h2>
    <ol class="errors">${[...errors].reverse().map(
      (error, at) => html`<li key=${`${error.at} ${error.query} ${error.what}`}>
      <p><strong class="break">${error.what}</strong></p>
      <p class="quiet">${[time(error.at), error.query, error.where].filter(Boolean).join(" · ")}</p>
      ${error.next && html`<p>Next: ${error.next}</p>`}
      ${error.trace && html`<details open=${at === 0}><summary>The whole text</summary><${Whole} text=${error.trace} what="the error's text" /></details>`}
    </li>`,
    )}</ol>
  </section>`;
}
