// Marks of states and kinds: each has a shape and a word besides its colour.
// @ts-check
/** @import { VNode } from "preact" */
import { html } from "./html.js";
import { STATES } from "./facts.js";

/** @type {Record<string, () => VNode | VNode[]>} */
const SHAPES = {
  failed: () => html`<path d="M5 1h6l4 4v6l-4 4H5l-4-4V5z" /><path class="cut" d="M5.5 5.5l5 5m0-5l-5 5" />`,
  behind: () => html`<path d="M8 1.5l7 13H1z" /><path class="cut" d="M8 6v4m0 2v.5" />`,
  waiting: () => html`<path d="M8 .8L15.2 8 8 15.2.8 8z" /><path class="cut" d="M8 4.5V8l2 2" />`,
  starting: () => html`<circle class="line" cx="8" cy="8" r="6.5" stroke-dasharray="3 2.5" />`,
  running: () => html`<circle cx="8" cy="8" r="7" /><path class="cut" d="M4.8 8.2l2.3 2.3 4.2-4.6" />`,
  idle: () => html`<circle class="line" cx="8" cy="8" r="6.2" /><circle cx="8" cy="8" r="2" />`,
  stopped: () => html`<rect x="1.5" y="1.5" width="13" height="13" rx="1.5" />`,
  paused: () =>
    html`<rect x="2" y="1.5" width="4.5" height="13" rx="1" /><rect x="9.5" y="1.5" width="4.5" height="13" rx="1" />`,
};

/**
 * The shape of a state alone, for places that also say the word.
 * @param {string} state
 */
export const shape = (state, more = {}) =>
  html`<svg class="shape is-${state}" viewBox="0 0 16 16" aria-hidden="true" ...${more}>${(SHAPES[state] ?? SHAPES.stopped)()}</svg>`;

/**
 * A state: its shape and its word.
 * @param {{ state: string, word?: string }} props
 */
export const State = ({ state, word = state }) =>
  html`<span class="state is-${state}" title=${STATES[state] ?? ""}>${shape(state)}${word}</span>`;

/**
 * A name that breaks after its dots, slashes and underscores if it is longer than a column should be.
 * @param {unknown} name
 */
export const breakable = (name) =>
  html`<span class="name-cell">${String(name)
    .split(/(?<=[._/@:-])/)
    .flatMap((part, at) => (at ? [html`<wbr />`, part] : [part]))}</span>`;

/**
 * The state of a connector or a task in the words of Kafka Connect.
 * @param {{ state?: string | null }} props
 */
export function ConnectState({ state }) {
  /** @type {Record<string, string>} */
  const marks = {
    RUNNING: "running",
    FAILED: "failed",
    PAUSED: "paused",
    STOPPED: "stopped",
    UNASSIGNED: "waiting",
    RESTARTING: "starting",
  };
  return html`<${State} state=${marks[state ?? ""] ?? "stopped"} word=${(state ?? "unknown").toLowerCase()} />`;
}

/** @type {Record<string, () => VNode | VNode[]>} */
const KINDS = {
  table: () =>
    html`<ellipse cx="8" cy="3.5" rx="6" ry="2.2" /><path d="M2 3.5v9c0 1.2 2.7 2.2 6 2.2s6-1 6-2.2v-9M2 8c0 1.2 2.7 2.2 6 2.2s6-1 6-2.2" />`,
  http: () => html`<circle cx="8" cy="8" r="6.5" /><path d="M1.5 8h13M8 1.5c4 4 4 9 0 13M8 1.5c-4 4-4 9 0 13" />`,
  topic: () => html`<path d="M2 4h12M2 8h12M2 12h12" />`,
  query: () => html`<path d="M2 4h4l4 8h4M2 12h4l1.3-2.6M10 4h4M8.7 6.6L10 4" />`,
  state: () => html`<rect x="2" y="2" width="12" height="12" rx="1.5" /><path d="M2 6h12M2 10h12M6.5 6v8" />`,
  sink: () => html`<path d="M8 1.5v8M4.5 6.5L8 10l3.5-3.5M2 11v3h12v-3" />`,
};

/**
 * The sign of a kind of node.
 * @param {string} kind
 */
export const kindSign = (kind, more = {}) =>
  html`<svg class="kind" viewBox="0 0 16 16" aria-hidden="true" ...${more}>${(KINDS[kind] ?? KINDS.sink)()}</svg>`;
