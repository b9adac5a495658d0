// What is wrong, worst first, with what to do; and how many queries are in each state, as filters.
// @ts-check
/** @import { Problem, QueryOfRun, Run } from "../../types" */
import { html } from "./html.js";
import { STATES } from "./facts.js";
import { href } from "./route.js";
import { State, shape } from "./marks.js";
import { many } from "./format.js";

const FOLDED = 3; // problems that are shown before the rest is folded

/**
 * The page that tells more about a problem, or null.
 * @param {Problem} problem
 * @param {Set<string>} known
 */
function pageOf({ run, query, cluster = null }, known) {
  if (cluster !== null) return href("connectors", query ? [cluster, query] : []);
  return known.has(run) ? href("pipelines", [run], { query }) : null;
}

/** @param {{ problem: Problem, page: string | null }} props */
const OneProblem = ({ problem, page }) => html`<li class=${`problem is-${problem.severity}`}>
  <${State} state=${problem.severity} />
  <div>
    <p><strong>${problem.what}</strong></p>
    <p class="quiet">${[problem.where, problem.query].filter(Boolean).join(" · ")}</p>
    ${problem.next && html`<p>Next: ${problem.next}</p>`}
  </div>
  ${page && html`<a class="button" href=${page}>Open<span class="unseen"> ${problem.query || problem.run}</span></a>`}
</li>`;

/** @param {{ problems: Problem[], runs: Run[] }} props */
export function Problems({ problems, runs }) {
  if (!problems.length) return html`<p class="well">${shape("running")} Nothing is wrong.</p>`;
  const known = new Set(runs.map((run) => run.id));
  const item = (/** @type {Problem} */ problem) =>
    html`<${OneProblem} key=${`${problem.run} ${problem.query} ${problem.what}`} problem=${problem} page=${pageOf(problem, known)} />`;
  return html`<section aria-labelledby="problems">
    <h2 id="problems">${many(problems.length, "problem")}</h2>
    <ul class="problems">${problems.slice(0, FOLDED).map(item)}</ul>
    ${problems.length > FOLDED && html`<details><summary>${many(problems.length - FOLDED, "more problem")}</summary><ul class="problems">${problems.slice(FOLDED).map(item)}</ul></details>`}
  </section>`;
}

/**
 * How many queries are in each state; a click shows these alone.
 * @param {{ queries: QueryOfRun[], chosen: string, onChoose: (state: string) => void }} props
 */
export function StateFilter({ queries, chosen, onChoose }) {
  const count = (/** @type {string} */ state) => queries.filter((query) => query.state === state).length;
  const counts = Object.keys(STATES).map((state) => /** @type {const} */ ([state, count(state)]));
  return html`<div class="chips" role="group" aria-label="Show only one state">
    ${counts
      .filter(([state, number]) => number || state === chosen)
      .map(
        ([
          state,
          number,
        ]) => html`<button key=${state} type="button" class=${`chip is-${state}`} aria-pressed=${String(state === chosen)}
        onClick=${() => onChoose(state === chosen ? "" : state)}>${shape(state)}<strong>${number}</strong> ${state}</button>`,
      )}
  </div>`;
}
