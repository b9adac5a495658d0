// The batches of a query over time: lag, delay, rows, and where the time of a batch goes.
// @ts-check
/** @import { Batch, Column, Columns, Format, Series, StreamQuery } from "../../types" */
import { useMemo } from "preact/hooks";
import { html } from "./html.js";
import { count, duration, rate, time } from "./format.js";
import { Chart, stacked } from "./chart.js";
import { largest } from "./facts.js";
import { Table } from "./table.js";

/** @type {(history: Batch[], values: (number | null)[][]) => Columns} */
const withTimes = (history, values) => [history.map((batch) => Date.parse(batch.at) / 1000), ...values];

const TINTS = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6", "--series-7"];
const SLOWEST = 5;

/**
 * Rows a second from the end of one batch to the end of the next; null for the first.
 * @param {Batch[]} history
 */
export const ratesOf = (history) =>
  history.map((batch, at) => {
    const passed = at ? (Date.parse(batch.at) - Date.parse(history[at - 1].at)) / 1000 : 0;
    return passed > 0 && typeof batch.rows === "number" ? batch.rows / passed : null;
  });

/**
 * A sentence about a line of values: the newest and the largest, with its time.
 * @param {Batch[]} history
 * @param {(number | null)[]} values
 * @param {Format} format
 */
function sentence(history, values, format) {
  const top = largest(values);
  if (top === null) return "not measured";
  if (top === 0) return `${format(0)} all the time`;
  const newest = values.findLast((value) => (value ?? null) !== null);
  return `now ${format(newest)}, highest ${format(top)} at ${time(history[values.indexOf(top)].at)}`;
}

/**
 * The phases of all batches, those that take longest first.
 * @param {Batch[]} history
 */
function phasesOf(history) {
  /** @type {Map<string, number>} */
  const totals = new Map();
  for (const batch of history)
    for (const [phase, seconds] of Object.entries(batch.phases ?? {}))
      totals.set(phase, (totals.get(phase) ?? 0) + seconds);
  totals.delete("triggerExecution"); // the whole batch, of which the others are parts
  return [...totals].sort((left, right) => right[1] - left[1]).map(([phase]) => phase);
}

/**
 * Spark's names of the phases of a batch, in plain words.
 * @type {Record<string, string>}
 */
const WORDS = {
  latestOffset: "looking for data",
  getBatch: "preparing to read",
  queryPlanning: "planning",
  addBatch: "reading and writing",
  walCommit: "noting the batch",
  commitOffsets: "committing",
  commitBatch: "committing",
};
/** @param {string} phase */
const named = (phase) => (WORDS[phase] ? `${WORDS[phase]} (${phase})` : phase);

/**
 * @param {object} props
 * @param {string} props.title
 * @param {Batch[]} props.history
 * @param {(number | null)[][]} props.values
 * @param {Series[]} props.series
 * @param {Format} props.format
 * @param {string} [props.unknown]
 */
function Line({ title, history, values, series, format, unknown }) {
  const data = useMemo(() => withTimes(history, values), [history]);
  return html`<${Chart} title=${title} sentence=${sentence(history, values[0], format)} data=${data} series=${series} format=${format} unknown=${unknown} />`;
}

/** @param {{ history: Batch[] }} props */
function Phases({ history }) {
  const phases = phasesOf(history);
  const shown = phases.slice(0, TINTS.length - 1);
  const rest = phases.slice(shown.length);
  const words = shown.map((phase) => WORDS[phase] ?? phase);
  const names = rest.length ? [...words, "others"] : words;
  const data = useMemo(() => {
    const columns = shown.map((phase) => history.map((batch) => batch.phases?.[phase] ?? 0));
    if (rest.length)
      columns.push(history.map((batch) => rest.reduce((sum, phase) => sum + (batch.phases?.[phase] ?? 0), 0)));
    return withTimes(history, stacked(columns).reverse());
  }, [history]);
  const series = names.map((label, at) => ({ label, tint: TINTS[at] })).reverse();
  return html`<${Chart} title="Phases of each batch" sentence=${phases.length ? `longest: ${named(phases[0])}` : "not measured"} unknown="No batch with rows ended in this time." data=${data} series=${series} format=${duration} bars />`;
}

/** @type {(phases: string[]) => Column<Batch>[]} */
const columns = (phases) => [
  { title: "Ended", head: true, value: (batch) => batch.at, cell: (batch) => time(batch.at) },
  { title: "Time", number: true, value: (batch) => batch.seconds, cell: (batch) => duration(batch.seconds) },
  { title: "Rows", number: true, value: (batch) => batch.rows, cell: (batch) => count(batch.rows) },
  { title: "Lag", number: true, value: (batch) => batch.lag_seconds, cell: (batch) => duration(batch.lag_seconds) },
  { title: "Delay P99", number: true, value: (batch) => batch.delay_p99, cell: (batch) => duration(batch.delay_p99) },
  ...phases.map((phase) => ({
    title: named(phase),
    number: true,
    value: (/** @type {Batch} */ batch) => batch.phases?.[phase],
    cell: (/** @type {Batch} */ batch) => duration(batch.phases?.[phase]),
  })),
];

/**
 * query.history within the last `range` seconds before `now`.
 * @param {{ query: StreamQuery, now: string, range: number }} props
 */
export function BatchCharts({ query, now, range }) {
  const history = useMemo(() => {
    const since = Date.parse(now) - range * 1000;
    return (query.history ?? []).filter((batch) => Date.parse(batch.at) >= since);
  }, [query, range]);
  if (!history.length)
    return html`<section class="card"><h2>Batches</h2><p class="quiet">No batch ended in this time.</p></section>`;
  const of = (/** @type {"lag_seconds" | "lag_records" | "delay_p99"} */ name) =>
    history.map((batch) => batch[name] ?? null);
  const target = query.target_seconds;
  // A target far above all delays would make them a flat line.
  const nearTarget = target && (largest(of("delay_p99")) ?? 0) > target / 4;
  const delays = [of("delay_p99"), ...(nearTarget ? [history.map(() => target)] : [])];
  const slowest = [...history].sort((left, right) => (right.seconds ?? 0) - (left.seconds ?? 0)).slice(0, SLOWEST);
  const inSeconds = of("lag_seconds").some((value) => value !== null);
  return html`<section class="card" aria-labelledby="batches">
    <h2 id="batches">Over time</h2>
    <div class="charts">
      <${Line} title="Lag" history=${history} values=${[of(inSeconds ? "lag_seconds" : "lag_records")]} series=${[{ label: "lag", tint: "--series-1" }]} format=${inSeconds ? duration : count} />
      <${Line} title="Delay P99" history=${history} values=${delays} series=${[{ label: "delay P99", tint: "--series-1" }, ...(nearTarget ? [{ label: "target", tint: "--behind", dash: [6, 4] }] : [])]} format=${duration} unknown="No row was acknowledged in this time, or the rows have no time of their event." />
      <${Line} title="Rows a second" history=${history} values=${[ratesOf(history)]} series=${[{ label: "rows/s", tint: "--series-1" }]} format=${rate} />
      <${Phases} history=${history} />
    </div>
    <details class="same"><summary>The slowest batches as a table</summary>
      <${Table} caption="The slowest batches" columns=${columns(phasesOf(history).slice(0, 6))} rows=${slowest} keyOf=${(/** @type {Batch} */ batch) => batch.at} first=${{ title: "Time", down: true }} /></details>
  </section>`;
}
