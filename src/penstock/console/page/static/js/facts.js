// What an overview says of each query and of each node of the graph, in one place for the graph and for its table.

/** The largest of the known values; null if none is known. */
export const largest = (values) =>
  values.reduce((most, value) => ((value ?? null) === null ? most : Math.max(most ?? value, value)), null);
const total = (values) => values.reduce((sum, value) => ((value ?? null) === null ? sum : (sum ?? 0) + value), null);
const counted = (counts) => total(Object.values(counts ?? {}));

export const lagSeconds = (query) => largest((query.sources ?? []).map((source) => source.lag_seconds));
export const lagRecords = (query) => total((query.sources ?? []).map((source) => source.lag_records));
export const rowsPerSecond = (query) => query.rows_per_second ?? null;
/** A percentile ("p50", "p95", "p99") of the delay, of the slowest sink. */
export const delay = (query, percentile) => largest((query.sinks ?? []).map((sink) => sink.delay?.[percentile]));

/** Why no delay of a query is known; "" if one is, or its command does not say. */
export const unmeasured = (query) =>
  delay(query, "p99") === null ? ((query.sinks ?? []).map((sink) => sink.delay?.unknown).find(Boolean) ?? "") : "";

/** The states, worst first, with a sentence about each. */
export const STATES = {
  failed: "ended with an error",
  behind: "behind its target",
  waiting: "waits for a server",
  starting: "starts",
  stopped: "was stopped",
  running: "runs",
  idle: "runs, and there is nothing to do",
};
const ORDER = Object.keys(STATES);
export const rankOf = (state) => ORDER.indexOf(state);

/** The state of a query as the page shows it: running is split into behind, running and idle. */
export function stateOf(run, query, problems) {
  const own = (problem) => problem.run === run.id && (problem.query === query.name || !problem.query);
  const severities = problems.filter(own).map((problem) => problem.severity);
  if (severities.includes("failed")) return "failed";
  if (query.state !== "running") return query.state in STATES ? query.state : "stopped";
  if (severities.includes("behind")) return "behind";
  return rowsPerSecond(query) === 0 && !lagRecords(query) ? "idle" : "running";
}

/** All queries of all runs: [{run, query, state}]. */
export function queriesOf(overview) {
  return overview.runs.flatMap((run) =>
    (run.queries ?? []).map((query) => ({ run, query, state: stateOf(run, query, overview.problems) })),
  );
}

function factsOfNode(node, queries, reading, writing, rates, edges) {
  // What is read from a topic by several queries was written once.
  const rate = rates.get(`to ${node.id}`) ?? rates.get(`from ${node.id}`) ?? null;
  const facts = { node, rate, state: null, run: null, query: null };
  if (node.kind === "query") {
    const own = queries.find(({ query }) => query.node === node.id);
    if (!own) return { ...facts, state: "stopped" };
    const { run, query, state } = own;
    return {
      ...facts,
      run,
      query,
      state,
      rate: rowsPerSecond(query) ?? facts.rate,
      lagSeconds: lagSeconds(query),
      lagRecords: lagRecords(query),
      delay: delay(query, "p99"),
    };
  }
  const sources = reading.get(node.id) ?? [];
  const sinks = writing.get(node.id) ?? [];
  return {
    ...facts,
    lagSeconds: largest(sources.map((source) => source.lag_seconds)),
    lagRecords: largest(sources.map((source) => source.lag_records)),
    delay: largest(sinks.map((sink) => sink.delay?.p99)),
    deadLetters: total(sinks.map((sink) => counted(sink.dead_letters))),
    ...(node.kind === "state" ? factsOfState(node, queries, edges) : { rows: null }),
  };
}

/** The rows of a state, and its name in the list of states, which follows the folders of checkpoints. */
function factsOfState(node, queries, edges) {
  const operator = node.name;
  const keeping = new Set(edges.filter((edge) => edge.target === node.id).map((edge) => edge.source));
  const owners = queries.map(({ query }) => query).filter((query) => keeping.has(query.node));
  const rows = total(
    owners.flatMap((query) =>
      (query.states ?? []).filter((state) => state.operator === operator).map((state) => state.rows),
    ),
  );
  const [{ name, pipeline } = {}] = owners;
  const folder = pipeline && name.startsWith(`${pipeline}.`) ? `${pipeline}/${name.slice(pipeline.length + 1)}` : name;
  return { rows, listed: folder ? `${folder}/${operator}` : null };
}

function grouped(parts) {
  const found = new Map();
  for (const part of parts) if (part.node) found.set(part.node, [...(found.get(part.node) ?? []), part]);
  return found;
}

/** What is known of each node: Map of id -> {node, state, rate, lagSeconds, lagRecords, delay, run, query ...}. */
export function factsOf(overview, queries) {
  const reading = grouped(queries.flatMap(({ query }) => query.sources ?? []));
  const writing = grouped(queries.flatMap(({ query }) => query.sinks ?? []));
  const rates = new Map();
  for (const { source, target, rate } of overview.graph.edges) {
    rates.set(`from ${source}`, largest([rates.get(`from ${source}`), rate]));
    rates.set(`to ${target}`, total([rates.get(`to ${target}`), rate]));
  }
  const { nodes, edges } = overview.graph;
  return new Map(nodes.map((node) => [node.id, factsOfNode(node, queries, reading, writing, rates, edges)]));
}
