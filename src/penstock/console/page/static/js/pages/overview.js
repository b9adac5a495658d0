// The first page: what is wrong, the graph, and all queries.
// @ts-check
/** @import { Overview as Seen, QueryOfRun } from "../../../types" */
/** @import { ComponentChildren } from "preact" */
import { html, withValue } from "../html.js";
import { delay, lagSeconds, largest, queriesOf, rowsPerSecond } from "../facts.js";
import { count, duration, rate } from "../format.js";
import { setQuery, useRoute } from "../route.js";
import { useOverview } from "../live.js";
import { PipelineMap } from "../map.js";
import { Problems, StateFilter } from "../problems.js";
import { QueryTable } from "../queries.js";

/** @param {{ name: string, value: string, note?: ComponentChildren }} props */
const Tile = ({ name, value, note }) =>
  html`<div class="tile"><dt>${name}</dt><dd>${value}${note && html`<small> ${note}</small>`}</dd></div>`;

/** @param {{ queries: QueryOfRun[], overview: Seen }} props */
function Tiles({ queries, overview }) {
  const all = queries.map(({ query }) => query);
  const running = overview.runs.filter((run) => run.state !== "stopped" && run.reachable !== false).length;
  const rows = all.reduce((sum, query) => sum + (rowsPerSecond(query) ?? 0), 0);
  return html`<dl class="tiles">
    <${Tile} name="Running commands" value=${count(running)} note=${overview.runs.length ? `of ${overview.runs.length} that are known` : ""} />
    <${Tile} name="Rows a second" value=${rate(rows)} />
    <${Tile} name="Largest lag" value=${duration(largest(all.map(lagSeconds)))} />
    <${Tile} name="Delay P50" value=${duration(largest(all.map((query) => delay(query, "p50"))))} note="slowest query" />
    <${Tile} name="Delay P95" value=${duration(largest(all.map((query) => delay(query, "p95"))))} note="slowest query" />
    <${Tile} name="Delay P99" value=${duration(largest(all.map((query) => delay(query, "p99"))))} note="slowest query" />
  </dl>`;
}

/** @param {{ overview: Seen }} props */
const Empty = ({ overview }) => html`<section class="card welcome">
  <h2>No pipeline is running</h2>
  <p>Commands that run on this machine are found by themselves: start one, and it appears here within seconds.</p>
  <pre tabindex="0" role="region" aria-label="Commands to try">penstock run shop.py:orders
penstock console --target http://HOST:PORT       # a command on another machine
penstock console --checkpoints DIR               # pipelines that are stopped</pre>
  ${overview.targets?.length > 0 && html`<p class="quiet">Asked: ${overview.targets.map((target) => (typeof target === "string" ? target : target.url)).join(", ")}</p>`}
</section>`;

export function Overview() {
  const overview = useOverview();
  const { query } = useRoute();
  const queries = queriesOf(overview);
  const low = (query.q ?? "").toLowerCase();
  const shown = queries.filter(
    (one) =>
      (!query.state || one.state === query.state) &&
      (!low || `${one.query.name} ${one.run.name}`.toLowerCase().includes(low)),
  );
  return html`
    <h1 class="unseen">Overview</h1>
    <${Tiles} queries=${queries} overview=${overview} />
    ${(overview.runs.length > 0 || overview.problems.length > 0) && html`<${Problems} problems=${overview.problems} runs=${overview.runs} />`}
    ${!overview.runs.length && html`<${Empty} overview=${overview} />`}
    ${
      queries.length > 0 &&
      html`<div class="filters">
      <label class="search"><span class="unseen">Filter by name</span><input type="search" placeholder="Filter by name" value=${query.q ?? ""} onInput=${withValue((q) => setQuery({ q }))} /></label>
      <${StateFilter} queries=${queries} chosen=${query.state ?? ""} onChoose=${(/** @type {string} */ state) => setQuery({ state })} />
    </div>`
    }
    ${overview.runs.length > 0 && html`<${PipelineMap} overview=${overview} query=${query} />`}
    ${queries.length > 0 && html`<section class="card" aria-labelledby="queries"><div class="heading"><h2 id="queries">Queries</h2><span class="quiet">delay: from the event to the sink's acknowledgement, of the last 5 minutes; P99: 99 of 100 rows are faster</span></div><${QueryTable} queries=${shown} now=${overview.now} /></section>`}
  `;
}
