// The last values of each query, for the small lines in tables: read once from its history, then from each overview.
// @ts-check
/** @import { Overview, Run, StreamQuery } from "../../types" */
import { get } from "./api.js";
import { ratesOf } from "./batches.js";
import { lagSeconds, rowsPerSecond } from "./facts.js";

const LENGTH = 60;
const SEEDED_AT_ONCE = 40; // pipelines whose history is read when the page is opened

/** @typedef {{ lag: (number | null)[], rate: (number | null)[] }} Values */
/** @type {Map<string, Values>} by "run/query" */
const values = new Map();
/** @type {Set<string>} the ids of runs */
const seeded = new Set();

/** @type {(run: Run, query: StreamQuery) => string} */
const keyOf = (run, query) => `${run.id}/${query.name}`;
/** @type {(run: Run, query: StreamQuery) => Values} */
export const seriesOf = (run, query) => values.get(keyOf(run, query)) ?? { lag: [], rate: [] };

/** @type {(list: (number | null)[], value: number | null) => void} */
function pushed(list, value) {
  list.push(value);
  if (list.length > LENGTH) list.shift();
}

/** @param {string} key */
function of(key) {
  const series = values.get(key) ?? { lag: [], rate: [] };
  values.set(key, series);
  return series;
}

/** @param {Run} run */
async function seed(run) {
  const whole = await get(["pipelines", run.id]).catch(() => null);
  for (const query of whole?.queries ?? []) {
    const series = of(keyOf(run, query));
    const history = (query.history ?? []).slice(-LENGTH);
    series.lag = [...history.map((batch) => batch.lag_seconds ?? null), ...series.lag].slice(-LENGTH);
    series.rate = [...ratesOf(history), ...series.rate].slice(-LENGTH);
  }
}

/**
 * Add the numbers of an overview.
 * @param {Overview} overview
 */
export function add(overview) {
  const there = new Set();
  for (const run of overview.runs ?? []) {
    if (run.state !== "stopped" && !seeded.has(run.id) && seeded.size < SEEDED_AT_ONCE) {
      seeded.add(run.id);
      seed(run);
    }
    for (const query of run.queries ?? []) {
      const series = of(keyOf(run, query));
      there.add(keyOf(run, query));
      pushed(series.lag, lagSeconds(query));
      pushed(series.rate, rowsPerSecond(query));
    }
  }
  for (const key of values.keys()) if (!there.has(key)) values.delete(key);
}
