// The graph with its tools: what the filter leaves, neighbours only, folded idle pipelines, the chosen node, and a table
// with the same facts.
// @ts-check
/** @import { Column, Facts, Graph, Overview, Query } from "../../types" */
import { useMemo } from "preact/hooks";
import { html } from "./html.js";
import { count, duration, many, rate } from "./format.js";
import { factsOf, queriesOf, rankOf } from "./facts.js";
import { go, href, setQuery } from "./route.js";
import { GraphView } from "./graph.js";
import { isTopic, topicPage } from "./kafka.js";
import { around, components } from "./layout.js";
import { State, breakable, kindSign } from "./marks.js";
import { Table } from "./table.js";

const LARGE = 60; // nodes above which idle components are folded unless the address says otherwise

/**
 * The page of a node, or null.
 * @param {Facts} facts
 */
function pageOf({ node, run, query, listed }) {
  if (run) return href("pipelines", [run.id], { query: query?.name });
  if (isTopic(node)) return topicPage(node);
  if (node.kind === "state") return listed && href("state", [listed]);
  if (node.kind === "http") return href("ingest");
  return null;
}

/** @param {Facts | undefined} facts */
const isIdle = (facts) => !facts || facts.state === null || facts.state === "idle" || facts.state === "stopped";

/**
 * The nodes and edges to draw, and the number of idle components that are folded.
 * @param {Graph} graph
 * @param {Map<string, Facts>} facts
 * @param {{ text?: string, state?: string, node?: string, near?: boolean, fold?: boolean }} filter
 */
function visible({ nodes, edges }, facts, { text = "", state = "", node = "", near = false, fold = false }) {
  let kept = new Set(nodes.map((one) => one.id));
  if (text || state) {
    const low = text.toLowerCase();
    const fits = nodes.filter(
      (one) => (!text || one.name.toLowerCase().includes(low)) && (!state || facts.get(one.id)?.state === state),
    );
    kept = around(new Set(fits.map((one) => one.id)), edges);
  }
  if (near && kept.has(node)) kept = around(new Set([node]), edges);
  const left = {
    nodes: nodes.filter((one) => kept.has(one.id)),
    edges: edges.filter((edge) => kept.has(edge.source) && kept.has(edge.target)),
  };
  if (!fold || near || text || state) return { ...left, folded: 0 };
  const parts = components(left.nodes, left.edges);
  const busy = parts.filter((part) => !part.nodes.every((one) => isIdle(facts.get(one.id))));
  const open = busy.length ? busy : parts;
  return {
    nodes: open.flatMap((part) => part.nodes),
    edges: open.flatMap((part) => part.edges),
    folded: parts.length - open.length,
  };
}

/** @typedef {Facts & { targets: (string | undefined)[] }} Row */
/** @type {Column<Row>[]} */
const columns = [
  {
    title: "Name",
    head: true,
    value: ({ node }) => node.name,
    cell: (facts) =>
      html`${kindSign(facts.node.kind)} ${pageOf(facts) ? html`<a href=${pageOf(facts)}>${breakable(facts.node.name)}</a>` : breakable(facts.node.name)}`,
  },
  { title: "Kind", value: ({ node }) => node.kind, cell: ({ node }) => node.kind },
  {
    title: "State",
    value: ({ state }) => (state ? rankOf(state) : null),
    cell: ({ state }) => (state ? html`<${State} state=${state} />` : "–"),
  },
  { title: "Rows/s", number: true, value: (facts) => facts.rate, cell: (facts) => rate(facts.rate) },
  { title: "Lag", number: true, value: (facts) => facts.lagSeconds, cell: (facts) => duration(facts.lagSeconds) },
  {
    title: "Lag in records",
    number: true,
    value: (facts) => facts.lagRecords,
    cell: (facts) => count(facts.lagRecords),
  },
  { title: "Delay P99", number: true, value: (facts) => facts.delay, cell: (facts) => duration(facts.delay) },
  { title: "Writes to", cell: (facts) => facts.targets.join(", ") || "–" },
];

/** @param {Graph & { facts: Map<string, Facts> }} props */
function NodeTable({ nodes, edges, facts }) {
  const names = new Map(nodes.map((node) => [node.id, node.name]));
  const targets = (/** @type {string} */ id) =>
    edges.filter((edge) => edge.source === id).map((edge) => names.get(edge.target));
  const rows = nodes.flatMap((node) => {
    const known = facts.get(node.id);
    return known ? [{ ...known, targets: targets(node.id) }] : [];
  });
  return html`<${Table} caption="The graph as a table" columns=${columns} rows=${rows} keyOf=${(/** @type {Row} */ { node }) => node.id} />`;
}

/** @param {{ facts: Facts, near: boolean }} props */
function Chosen({ facts, near }) {
  const page = pageOf(facts);
  const about = [
    facts.node.kind,
    facts.node.system,
    facts.node.address,
    facts.rate !== null && `${rate(facts.rate)} rows/s`,
    (facts.lagSeconds ?? null) !== null && `lag ${duration(facts.lagSeconds)}`,
    (facts.delay ?? null) !== null && `delay P99 ${duration(facts.delay)}`,
  ];
  const unread = isTopic(facts.node) && !page;
  return html`<div class="chosen-node">
    <p><strong class="break">${facts.node.name}</strong> <span class="quiet">${about.filter(Boolean).join(" · ")}</span></p>
    ${unread && html`<p class="quiet">The console does not read this Kafka. Start it with <code>--servers ${facts.node.address}</code> to see the topic.</p>`}
    <div class="actions">
      ${page && html`<a class="button main" href=${page}>Open</a>`}
      <button type="button" aria-pressed=${String(near)} onClick=${() => setQuery({ near: near ? "" : "1" })}>Neighbours only</button>
      <button type="button" onClick=${() => setQuery({ node: "", near: "" })}>Close</button>
    </div>
  </div>`;
}

/**
 * The graph of an overview; `query` is the query of the address.
 * @param {{ overview: Overview, query: Query, label?: string }} props
 */
export function PipelineMap({ overview, query, label = "Graph of the pipelines" }) {
  const { graph } = overview;
  const facts = useMemo(() => factsOf(overview, queriesOf(overview)), [overview]);
  const fold = query.idle ? query.idle === "fold" : graph.nodes.length > LARGE;
  const chosen = facts.get(query.node ?? "");
  const node = chosen?.node.id ?? "";
  const shown = visible(graph, facts, { text: query.q, state: query.state, node, near: Boolean(query.near), fold });
  const onChoose = (/** @type {string} */ id) => setQuery(id === node ? { node: "", near: "" } : { node: id });
  const onOpen = (/** @type {Facts} */ one) => {
    const page = pageOf(one);
    if (page) go(page);
  };
  if (!graph.nodes.length) return html`<p class="quiet">No pipeline has told its graph yet.</p>`;
  return html`<section class="card" aria-labelledby="graph">
    <${GraphView} ...${shown} facts=${facts} chosen=${node} label=${label} onChoose=${onChoose} onOpen=${onOpen}>
      <h2 id="graph">Graph</h2>
      <span class="quiet">${many(shown.nodes.length, "node")}${shown.folded ? ` · ${many(shown.folded, "idle pipeline")} folded` : ""}</span>
      <button type="button" class="small" aria-pressed=${String(fold)} onClick=${() => setQuery({ idle: fold ? "show" : "fold" })}>Fold idle</button>
    <//>
    ${chosen && html`<${Chosen} facts=${chosen} near=${Boolean(query.near)} />`}
    <details class="same"><summary>The same as a table</summary><${NodeTable} ...${shown} facts=${facts} /></details>
  </section>`;
}
