// One pipeline: each query with its lag, delay and batches over time, its sources, sinks, states, errors and graph.
// @ts-check
/** @import { ConnectTask, Overview, Run, StreamQuery } from "../../../types" */
import { useEffect, useMemo } from "preact/hooks";
import { html, withValue } from "../html.js";
import { useGet } from "../api.js";
import { delay, lagRecords, lagSeconds, rankOf, rowsPerSecond, stateOf, unmeasured } from "../facts.js";
import { ago, bytes, cause, count, duration, many, rate, time } from "../format.js";
import { href, setQuery, useRoute } from "../route.js";
import { useOverview } from "../live.js";
import { PipelineMap } from "../map.js";
import { ConnectState, State } from "../marks.js";
import { Failure, Loading, Whole } from "../notices.js";
import { Problems } from "../problems.js";
import { BatchCharts } from "../batches.js";
import { LONG_RANGES, LongCharts } from "../long.js";
import { Errors, Parts } from "../parts.js";

/** @type {Record<string, string>} */
const RANGES = { 60: "1 min", 300: "5 min", 900: "15 min" };
const PERIOD = 2_000; // milliseconds between two looks at the history

/** @param {{ name: string, value: string, note?: string }} props */
const Fact = ({ name, value, note }) =>
  html`<div class="tile"><dt>${name}</dt><dd>${value}${note && html`<small> ${note}</small>`}</dd></div>`;

/** @param {{ query: StreamQuery, now: string }} props */
function Facts({ query, now }) {
  const starts = query.starts ?? {};
  const records = lagRecords(query);
  return html`<dl class="tiles">
    <${Fact} name="Rows a second" value=${rate(rowsPerSecond(query))} note=${`${count(query.rows_total)} in all`} />
    <${Fact} name="Lag" value=${duration(lagSeconds(query))} note=${records === null ? "" : `${count(records)} records`} />
    <${Fact} name="Delay P50" value=${duration(delay(query, "p50"))} />
    <${Fact} name="Delay P95" value=${duration(delay(query, "p95"))} />
    <${Fact} name="Delay P99" value=${duration(delay(query, "p99"))} note=${unmeasured(query) || (query.target_seconds ? `target ${duration(query.target_seconds)}` : "")} />
    <${Fact} name="Last commit" value=${ago(query.last_commit, now)} note=${(query.batch ?? null) === null ? "" : `batch ${query.batch}`} />
    <${Fact} name="Watermark" value=${query.watermark ? ago(query.watermark, now) : "–"} note=${query.watermark ? time(query.watermark) : ""} />
    <${Fact} name="Restarts" value=${count(starts.fault ?? 0)} note="after a fault" />
  </dl>`;
}

/**
 * @param {object} props
 * @param {Run} props.run
 * @param {StreamQuery} props.query
 * @param {string} props.state
 * @param {StreamQuery[]} props.queries
 * @param {string} props.range
 * @param {Record<string, string>} props.ranges
 */
function Head({ run, query, state, queries, range, ranges }) {
  return html`<div class="page-head">
    <h1>${run.name}</h1>
    <${State} state=${state} />
    <span class="quiet break">${[run.kind, run.command, run.pid && `process ${run.pid}`, run.jvm && `${bytes(run.jvm.used_bytes)} of JVM memory`].filter(Boolean).join(" · ")}</span>
    <div class="filters">
      ${queries.length > 1 && html`<label>Query <select value=${query.name} onChange=${withValue((name) => setQuery({ query: name }))}>${queries.map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}</select></label>`}
      <div class="segments" role="group" aria-label="Time range">
        ${Object.entries(ranges).map(([seconds, name]) => html`<button key=${seconds} type="button" aria-pressed=${String(seconds === range)} onClick=${() => setQuery({ range: seconds })}>${name}</button>`)}
      </div>
    </div>
  </div>`;
}

/** @param {{ connector: { name: string, state?: string, tasks?: ConnectTask[] } }} props */
const Connector = ({ connector }) => html`<section class="card" aria-label=${connector.name}>
  <div class="heading"><h2>${connector.name}</h2><${ConnectState} state=${connector.state} /><span class="quiet">${many(connector.tasks?.length ?? 0, "task")}</span></div>
  ${(connector.tasks ?? []).filter((task) => task.trace).map((task) => html`<div key=${task.id} class="failure"><p><strong>Task ${task.id} failed</strong></p><p>${cause(task.trace)}</p><${Whole} text=${task.trace} what=${`the trace of task ${task.id}`} /></div>`)}
</section>`;

/**
 * A command without queries, or one that has none yet: what it waits for, its errors, and the connectors of a worker.
 * @param {{ run: Run }} props
 */
function WithoutQuery({ run }) {
  const page = ["ingest", "state"].includes(run.kind) ? run.kind : "";
  return html`
    <div class="page-head"><h1>${run.name}</h1><${State} state=${run.state} /><span class="quiet break">${[run.kind, run.command, run.url].filter(Boolean).join(" · ")}</span></div>
    <p class="quiet">${run.waits_for ? `It waits for ${run.waits_for}.` : run.kind === "run" ? "It has no query yet." : ""}${page && html` <a href=${href(page)}>What it does is on a page of its own.</a>`}</p>
    <${Errors} errors=${run.errors ?? []} />
    ${run.connectors?.map((one) => html`<${Connector} key=${one.name} connector=${one} />`)}
  `;
}

/**
 * The part of the overview that is one run's.
 * @param {Overview} overview
 * @param {Run} run
 * @returns {Overview}
 */
function own(overview, run) {
  const ids = new Set((run.graph?.nodes ?? []).map((node) => node.id));
  const edges = overview.graph.edges.filter((edge) => ids.has(edge.source) && ids.has(edge.target));
  return { ...overview, runs: [run], graph: { nodes: overview.graph.nodes.filter((node) => ids.has(node.id)), edges } };
}

/** @param {{ args: string[] }} props */
export function Pipeline({ args: [id = ""] }) {
  const overview = useOverview();
  const route = useRoute();
  const { data: run, error, loading, reload } = useGet(["pipelines", id], {}, { every: PERIOD });
  const part = useMemo(() => run && own(overview, run), [overview, run]);
  useEffect(() => {
    document.title = `${id} · Penstock`;
  }, [id]);
  if (loading) return html`<${Loading} what=${id} />`;
  if (!run || !part)
    return html`<h1>${id}</h1><${Failure} error=${error} onRetry=${reload} /><p><a href=${href("overview")}>All pipelines</a></p>`;
  // The worst first: it is what a reader looks for.
  const rank = (/** @type {StreamQuery} */ one) => rankOf(stateOf(run, one, overview.problems));
  const queries = [...(run.queries ?? [])].sort((one, other) => rank(one) - rank(other));
  const query = queries.find((one) => one.name === route.query.query) ?? queries[0];
  const ranges = overview.history ? { ...RANGES, ...LONG_RANGES } : RANGES;
  const wanted = route.query.range ?? "";
  const range = wanted in ranges ? wanted : "300";
  const problems = overview.problems.filter(
    (problem) => problem.run === run.id && (!problem.query || problem.query === query?.name),
  );
  if (!query) return html`<${WithoutQuery} run=${run} />`;
  const state = stateOf(run, query, overview.problems);
  return html`
    <${Head} run=${run} query=${query} state=${state} queries=${queries} range=${range} ranges=${ranges} />
    <${Failure} error=${error} />
    ${run.reachable === false && state !== "stopped" && html`<p class="failure">It does not answer: these are its last numbers, of ${time(run.now)}.</p>`}
    ${query.waits_for && html`<p class="waits">It waits for ${query.waits_for}.</p>`}
    ${problems.length > 0 && html`<${Problems} problems=${problems} runs=${[]} />`}
    <${Facts} query=${query} now=${run.now ?? overview.now} />
    <${Errors} errors=${(run.errors ?? []).filter((one) => !one.query || one.query === query.name)} />
    ${range in LONG_RANGES ? html`<${LongCharts} query=${query} range=${range} />` : html`<${BatchCharts} query=${query} now=${run.now ?? overview.now} range=${Number(range)} />`}
    <${PipelineMap} overview=${part} query=${{ ...route.query, q: "", state: "" }} label=${`Graph of ${run.name}`} />
    <${Parts} query=${query} nodes=${part.graph.nodes} />
  `;
}
