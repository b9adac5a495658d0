// What an overview says of each query and of each node of the graph, in one place for the graph and for its table.
// @ts-check
/** @import { Counts, Facts, GraphEdge, GraphNode, Measured, Overview, Problem, QueryOfRun, Run, Sink, Source, StreamQuery } from "../../types" */

/** @param {readonly Measured[]} values */
const known = (values) => values.filter((value) => value !== null && value !== undefined);
/**
 * The largest of the known values; null if none is known.
 * @param {readonly Measured[]} values
 */
export const largest = (values) =>
  known(values).reduce((/** @type {number | null} */ most, value) => Math.max(most ?? value, value), null);
/** @param {readonly Measured[]} values */
const total = (values) => known(values).reduce((/** @type {number | null} */ sum, value) => (sum ?? 0) + value, null);
/** @param {Counts | undefined} counts */
const counted = (counts) => total(Object.values(counts ?? {}));

/** @param {StreamQuery} query */
export const lagSeconds = (query) => largest((query.sources ?? []).map((source) => source.lag_seconds));
/** @param {StreamQuery} query */
export const lagRecords = (query) => total((query.sources ?? []).map((source) => source.lag_records));
/** @param {StreamQuery} query */
export const rowsPerSecond = (query) => query.rows_per_second ?? null;
/**
 * A percentile of the delay, of the slowest sink.
 * @param {StreamQuery} query
 * @param {"p50" | "p95" | "p99"} percentile
 */
export const delay = (query, percentile) => largest((query.sinks ?? []).map((sink) => sink.delay?.[percentile]));

/**
 * Why no delay of a query is known; "" if one is, or its command does not say.
 * @param {StreamQuery} query
 */
export const unmeasured = (query) =>
  delay(query, "p99") === null ? ((query.sinks ?? []).map((sink) => sink.delay?.unknown).find(Boolean) ?? "") : "";

/**
 * The states, worst first, with a sentence about each.
 * @type {Record<string, string>}
 */
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
/** @param {string} state */
export const rankOf = (state) => ORDER.indexOf(state);

/**
 * The state of a query as the page shows it: running is split into behind, running and idle.
 * @param {Run} run
 * @param {StreamQuery} query
 * @param {Problem[]} problems
 */
export function stateOf(run, query, problems) {
  const own = (/** @type {Problem} */ problem) =>
    problem.run === run.id && (problem.query === query.name || !problem.query);
  const severities = problems.filter(own).map((problem) => problem.severity);
  if (severities.includes("failed")) return "failed";
  if (query.state !== "running") return query.state in STATES ? query.state : "stopped";
  if (severities.includes("behind")) return "behind";
  return rowsPerSecond(query) === 0 && !lagRecords(query) ? "idle" : "running";
}

/**
 * All queries of all runs.
 * @param {Overview} overview
 * @returns {QueryOfRun[]}
 */
export function queriesOf(overview) {
  return overview.runs.flatMap((run) =>
    (run.queries ?? []).map((query) => ({ run, query, state: stateOf(run, query, overview.problems) })),
  );
}

/**
 * @param {GraphNode} node
 * @param {QueryOfRun[]} queries
 * @param {Map<string, Source[]>} reading
 * @param {Map<string, Sink[]>} writing
 * @param {Map<string, number | null>} rates
 * @param {GraphEdge[]} edges
 * @returns {Facts}
 */
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

/**
 * The rows of a state, and its name in the list of states, which follows the folders of checkpoints.
 * @param {GraphNode} node
 * @param {QueryOfRun[]} queries
 * @param {GraphEdge[]} edges
 */
function factsOfState(node, queries, edges) {
  const operator = node.name;
  const keeping = new Set(edges.filter((edge) => edge.target === node.id).map((edge) => edge.source));
  const owners = queries.map(({ query }) => query).filter(({ node: own }) => own !== undefined && keeping.has(own));
  const rows = total(
    owners.flatMap((query) =>
      (query.states ?? []).filter((state) => state.operator === operator).map((state) => state.rows),
    ),
  );
  return { rows, listed: owners[0] ? `${folderOf(owners[0])}/${operator}` : null };
}

/** @param {StreamQuery} query */
const folderOf = ({ name, pipeline }) =>
  pipeline && name.startsWith(`${pipeline}.`) ? `${pipeline}/${name.slice(pipeline.length + 1)}` : name;

/**
 * The parts by their nodes.
 * @template {{ node?: string }} P
 * @param {P[]} parts
 */
function grouped(parts) {
  /** @type {Map<string, P[]>} */
  const found = new Map();
  for (const part of parts) if (part.node) found.set(part.node, [...(found.get(part.node) ?? []), part]);
  return found;
}

/**
 * What is known of each node, by its id.
 * @param {Overview} overview
 * @param {QueryOfRun[]} queries
 */
export function factsOf(overview, queries) {
  const reading = grouped(queries.flatMap(({ query }) => query.sources ?? []));
  const writing = grouped(queries.flatMap(({ query }) => query.sinks ?? []));
  /** @type {Map<string, number | null>} */
  const rates = new Map();
  for (const { source, target, rate } of overview.graph.edges) {
    rates.set(`from ${source}`, largest([rates.get(`from ${source}`), rate]));
    rates.set(`to ${target}`, total([rates.get(`to ${target}`), rate]));
  }
  const { nodes, edges } = overview.graph;
  return new Map(nodes.map((node) => [node.id, factsOfNode(node, queries, reading, writing, rates, edges)]));
}
