// The last values of each query, for the small lines in tables: read once from its history, then from each overview.
import { get } from "./api.js";
import { ratesOf } from "./batches.js";
import { lagSeconds, rowsPerSecond } from "./facts.js";

const LENGTH = 60;
const SEEDED_AT_ONCE = 40; // pipelines whose history is read when the page is opened

const values = new Map(); // "run/query" -> {lag: [], rate: []}
const seeded = new Set();

const keyOf = (run, query) => `${run.id}/${query.name}`;
export const seriesOf = (run, query) => values.get(keyOf(run, query)) ?? { lag: [], rate: [] };

function pushed(list, value) {
  list.push(value);
  if (list.length > LENGTH) list.shift();
}

function of(key) {
  if (!values.has(key)) values.set(key, { lag: [], rate: [] });
  return values.get(key);
}

async function seed(run) {
  const whole = await get(["pipelines", run.id]).catch(() => null);
  for (const query of whole?.queries ?? []) {
    const series = of(keyOf(run, query));
    const history = (query.history ?? []).slice(-LENGTH);
    series.lag = [...history.map((batch) => batch.lag_seconds ?? null), ...series.lag].slice(-LENGTH);
    series.rate = [...ratesOf(history), ...series.rate].slice(-LENGTH);
  }
}

/** Add the numbers of an overview. */
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
