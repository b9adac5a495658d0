// One dialog that asks before something is changed, and asks for the token of actions when the server wants it.
// @ts-check
import { useEffect, useRef } from "preact/hooks";
import { html } from "./html.js";
import { asApiError } from "./api.js";
import { setToken, token } from "./token.js";
import { notify } from "./notices.js";
import { store, useStore } from "./store.js";

/** @typedef {{ title: string, text: string, yes: string }} Wanted */
/** @typedef {Wanted & { needsToken: boolean, resolve: (yes: boolean) => void }} Asked */
const question = store(/** @type {Asked | null} */ (null));

/**
 * Ask; resolves to true or false.
 * @param {Wanted & { needsToken: boolean }} wanted
 * @returns {Promise<boolean>}
 */
function asked(wanted) {
  return new Promise((resolve) => question.set({ ...wanted, resolve }));
}

/**
 * Ask, do, and say what came of it. `act` returns the sentence to show. Returns whether it was done.
 * @param {Wanted} wanted
 * @param {() => Promise<string>} act
 */
export async function confirmed(wanted, act) {
  if (!(await asked({ ...wanted, needsToken: !token() }))) return false;
  try {
    notify(await act());
    return true;
  } catch (thrown) {
    const error = asApiError(thrown);
    if (error.status === 403) setToken("");
    notify([error.message, error.where, error.next].filter(Boolean).join(" · "), "bad");
    return false;
  }
}

export function Question() {
  const shown = useStore(question);
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    if (shown && dialog.current && !dialog.current.open) dialog.current.showModal();
  }, [shown]);
  if (!shown) return null;
  const close = () => {
    const answer = dialog.current?.returnValue === "yes";
    const typed = dialog.current?.querySelector("input")?.value;
    if (answer && typed) setToken(typed);
    question.set(null);
    shown.resolve(answer);
  };
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="question-title">
    <form method="dialog">
      <h2 id="question-title">${shown.title}</h2>
      <p>${shown.text}</p>
      ${shown.needsToken && html`<label>Token of actions, as <code>penstock console</code> printed it<input type="password" autocomplete="off" required /></label>`}
      <div class="actions">
        <button type="submit" value="yes" class="main">${shown.yes}</button>
        <button type="submit" value="no" formnovalidate>Cancel</button>
      </div>
    </form>
  </dialog>`;
}
