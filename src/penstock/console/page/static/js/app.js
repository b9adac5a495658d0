// The frame of the page: head, navigation, what is known of the connection, and the page that the address names.
// @ts-check
/** @import { Overview as Seen } from "../../types" */
/** @import { ComponentType } from "preact" */
import { useEffect, useRef } from "preact/hooks";
import { html, withValue } from "./html.js";
import { Question } from "./confirm.js";
import { Failure, Loading, Notices } from "./notices.js";
import { href, useRoute } from "./route.js";
import { shape } from "./marks.js";
import { THEMES, choose, theme } from "./theme.js";
import { time, zone } from "./format.js";
import { useConnection, useOverviewOrNull } from "./live.js";
import { useStore } from "./store.js";
import { Connectors } from "./pages/connectors.js";
import { DeadLetters } from "./pages/dead-letters.js";
import { Ingest } from "./pages/ingest.js";
import { Messages } from "./pages/messages.js";
import { Overview } from "./pages/overview.js";
import { Pipeline } from "./pages/pipeline.js";
import { State } from "./pages/state.js";
import { Topics } from "./pages/topics.js";

/** @typedef {{ args: string[] }} PageProps */
/** @type {Record<string, { name: string, view: ComponentType<PageProps> }>} */
const PAGES = {
  overview: { name: "Overview", view: Overview },
  topics: {
    name: "Topics",
    view: ({ args }) => (args.length ? html`<${Messages} args=${args} />` : html`<${Topics} />`),
  },
  messages: { name: "Messages", view: Messages },
  "dead-letters": { name: "Dead letters", view: DeadLetters },
  connectors: { name: "Connectors", view: Connectors },
  state: { name: "State", view: State },
  ingest: { name: "Ingest", view: Ingest },
};
/** @type {Record<string, { view: ComponentType<PageProps>, under: string }>} */
const HIDDEN = { pipelines: { view: Pipeline, under: "overview" } };

/** @type {(route: { page: string, args: string[] }) => string} */
const under = ({ page, args }) => (page === "topics" && args.length ? "messages" : (HIDDEN[page]?.under ?? page));

function Connection() {
  const { state, since } = useConnection();
  const words = {
    connecting: "connecting …",
    live: "live",
    lost: `connection lost at ${time(since)}, connecting again …`,
  };
  const mark = { connecting: "starting", live: "running", lost: "failed" };
  return html`<span class=${`connection is-${mark[state]}`} role="status">${shape(mark[state])}${words[state]}</span>`;
}

/** @param {{ overview: Seen | null }} props */
function ReadOnly({ overview }) {
  if (!overview) return null;
  return overview.read_only
    ? html`<span class="tag" title="Start the console with --allow-actions to act.">Read only</span>`
    : html`<span class="tag acts">Actions allowed</span>`;
}

/** @param {{ overview: Seen | null, current: string }} props */
function Head({ overview, current }) {
  const chosen = useStore(theme);
  const pages = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(
    () => pages.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }),
    [current],
  );
  return html`<header>
    <a class="brand" href=${href("overview")}><img src="static/icon.svg" alt="" width="24" height="24" /><span>Penstock</span></a>
    <nav aria-label="Pages" ref=${pages}>${Object.entries(PAGES).map(([page, { name }]) => html`<a key=${page} href=${href(page)} aria-current=${page === current ? "page" : undefined}>${name}</a>`)}</nav>
    <div class="about">
      <${ReadOnly} overview=${overview} />
      <${Connection} />
      <label title="Colours"><span class="unseen">Colours</span><svg class="shape" viewBox="0 0 16 16" aria-hidden="true"><circle class="line" cx="8" cy="8" r="6.5" /><path d="M8 1.5a6.5 6.5 0 0 1 0 13z" /></svg> <select value=${chosen} onChange=${withValue(choose)}>${Object.entries(THEMES).map(([one, name]) => html`<option key=${one} value=${one}>${name}</option>`)}</select></label>
    </div>
  </header>`;
}

export function App() {
  const overview = useOverviewOrNull();
  const connection = useConnection();
  const route = useRoute();
  const main = useRef(/** @type {HTMLElement | null} */ (null));
  const first = useRef(true);
  const place = `${route.page}/${route.args.join("/")}`;
  useEffect(() => {
    // A new page begins at its head, for the eye and for the keyboard.
    if (!first.current) main.current?.focus({ preventScroll: true });
    if (!first.current) scrollTo(0, 0);
    first.current = false;
    if (route.page === "overview") document.title = "Penstock console";
  }, [place]);
  const toContent = (/** @type {Event} */ event) => {
    event.preventDefault();
    main.current?.focus();
  };
  const page = PAGES[route.page] ?? HIDDEN[route.page];
  return html`
    <a class="skip" href="#main" onClick=${toContent}>To the content</a>
    <${Head} overview=${overview} current=${under(route)} />
    <main id="main" tabindex="-1" ref=${main}>
      ${!page && html`<h1>No such page</h1><p><a href=${href("overview")}>To the overview</a></p>`}
      ${page && !overview && connection.state !== "lost" && html`<${Loading} what="the overview" />`}
      ${page && !overview && connection.state === "lost" && html`<${Failure} error=${{ message: "The console's server does not answer.", next: "check that penstock console runs; the page connects again by itself" }} />`}
      ${page && overview && html`<${page.view} args=${route.args} />`}
    </main>
    <footer class="quiet">Penstock ${overview?.version ?? ""}${overview && ` · ${time(overview.now)} · times are in ${zone()}`}</footer>
    <${Notices} />
    <${Question} />
  `;
}
