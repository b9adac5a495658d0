// What the page says of itself: short notices of what was done, errors with the next step, and copying.
// @ts-check
import { useState } from "preact/hooks";
import { html } from "./html.js";
import { store, useStore } from "./store.js";

const SHOWN = 8_000; // milliseconds that a notice of success stays

/** @typedef {{ id: number, text: string, kind: "good" | "bad" }} Notice */
const notices = store(/** @type {Notice[]} */ ([]));
let last = 0;

/** @param {number} id */
const remove = (id) => notices.set(notices.get().filter((notice) => notice.id !== id));

/**
 * Say that something was done ("good") or failed ("bad"); failures stay until they are closed.
 * @param {string} text
 * @param {"good" | "bad"} [kind]
 */
export function notify(text, kind = "good") {
  const id = ++last;
  notices.set([...notices.get().slice(-3), { id, text, kind }]);
  if (kind === "good") setTimeout(() => remove(id), SHOWN);
}

export function Notices() {
  const shown = useStore(notices);
  return html`<div class="notices" role="status" aria-live="polite">
    ${shown.map(({ id, text, kind }) => html`<p key=${id} class="notice is-${kind}"><span>${text}</span><button type="button" class="plain" onClick=${() => remove(id)} aria-label="Close this notice">×</button></p>`)}
  </div>`;
}

/**
 * An error of the server: what, where, and what to do next.
 * @param {{ error?: { message: string, where?: string, next?: string } | null, onRetry?: () => void }} props
 */
export function Failure({ error, onRetry }) {
  if (!error) return null;
  return html`<div class="failure" role="alert">
    <p><strong>${error.message}</strong></p>
    ${error.where && html`<p>Where: <code>${error.where}</code></p>`}
    ${error.next && html`<p>Next: ${error.next}</p>`}
    ${onRetry && html`<button type="button" onClick=${onRetry}>Try again</button>`}
  </div>`;
}

/**
 * A button that copies a text; where the browser refuses, it says so.
 * @param {{ text: string, what: string }} props
 */
export function Copy({ text, what }) {
  const [said, setSaid] = useState("Copy");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      setSaid("Not allowed: select the text");
    }
    setTimeout(() => setSaid("Copy"), 2_000);
  };
  return html`<button type="button" class="small" onClick=${copy}>${said}<span class="unseen"> ${what}</span></button>`;
}

/**
 * A long text, whole and copyable.
 * @param {{ text: string, what: string }} props
 */
export const Whole = ({ text, what }) => html`<div class="whole">
  <${Copy} text=${text} what=${what} />
  <pre tabindex="0" role="region" aria-label=${what}>${text}</pre>
</div>`;

/** @param {{ what: string }} props */
export const Loading = ({ what }) => html`<p class="quiet" role="status">Loading ${what} …</p>`;
