// Starts the page.
// @ts-check
import "./token.js"; // first: it changes the address that the others read
import { render } from "preact";
import { html } from "./html.js";
import { App } from "./app.js";
import { start } from "./live.js";

render(html`<${App} />`, document.getElementById("app") ?? document.body);
start();
