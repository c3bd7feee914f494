// Foreman's dashboard: what a page does beside being read. Without it everything works but for being live.
"use strict";

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

// -- nudges: the server says that something changed, and the page fetches itself again -------------------

const nudges = {
  source: null,
  retry: 0,

  open() {
    const url = document.body.dataset.nudges;
    if (!url || this.source || document.hidden) return;
    this.source = new EventSource(url);
    this.source.addEventListener("nudge", () => this.nudge());
    this.source.onopen = () => { this.retry = 0; back(); };
    this.source.onerror = () => {
      // Is it the stream alone? The page finds out, and says so.
      setTimeout(() => this.nudge(), 500);
      // A stream that the server ends is reopened by the browser; one that it refuses is not.
      if (this.source && this.source.readyState === EventSource.CLOSED) {
        this.close();
        this.retry = Math.min(this.retry + 1, 5);
        setTimeout(() => this.open(), 1000 * this.retry);
      }
    };
  },

  // A hidden tab holds no connection: browsers have but six of them for each server.
  close() {
    if (this.source) this.source.close();
    this.source = null;
  },

  nudge() {
    if (!document.hidden && !document.querySelector("dialog[open]")) htmx.trigger(document.body, "nudge");
  },
};

function away(text) {
  const notice = $("#away");
  if (!notice) return;
  notice.hidden = false;
  notice.textContent = text;
}

function back() {
  const notice = $("#away");
  if (notice) notice.hidden = true;
}

document.addEventListener("htmx:responseError", (event) => {
  const status = event.detail.xhr.status;
  if (status === 401) {
    location.assign("/ui/sign-in?next=" + encodeURIComponent(location.pathname + location.search));
  } else if (status === 404) {
    away("This is not there any more. It may have been removed.");
  } else if (status === 429) {
    away("The server asks for a pause. This page goes on by itself.");
  } else {
    const page = new DOMParser().parseFromString(event.detail.xhr.responseText, "text/html");
    const said = [...page.querySelectorAll("main h1, main h1 + p")].map((each) => each.textContent.trim());
    away((said.join(": ") || "The server could not answer.") + " This page goes on by itself as soon as it can.");
    setTimeout(() => nudges.nudge(), 2500);
  }
});
document.addEventListener("htmx:sendError", () => {
  away("The server cannot be reached. This page goes on by itself as soon as it can.");
  setTimeout(() => nudges.nudge(), 2500);
});
document.addEventListener("htmx:afterRequest", (event) => { if (event.detail.successful) back(); });
document.addEventListener("htmx:configRequest", (event) => {
  event.detail.headers["X-CSRF-Token"] = document.body.dataset.csrf;
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) nudges.close();
  else { nudges.open(); nudges.nudge(); }
});
addEventListener("pagehide", () => nudges.close());
addEventListener("pageshow", (event) => { if (event.persisted) nudges.open(); });

// -- times go on by themselves ---------------------------------------------------------------------------

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function relative(moment) {
  const seconds = (Date.now() - moment) / 1000;
  const size = Math.abs(seconds);
  for (const [unit, name] of UNITS) {
    if (size >= unit) {
      const said = `${Math.floor(size / unit)} ${name}`;
      return seconds > 0 ? `${said} ago` : `in ${said}`;
    }
  }
  return "now";
}

function tickTimes() {
  for (const each of $$("time[datetime]")) {
    const said = relative(Date.parse(each.dateTime));
    if (each.textContent !== said) each.textContent = said;
  }
}

// -- copying, closing, dialogs ---------------------------------------------------------------------------

// As a spreadsheet takes it: numbers without their blanks, and no name taken for a formula.
function tableText(table) {
  const text = (cell) => ($("data", cell) || {}).value ?? cell.textContent.trim().replace(/^[=+@-]/, "'$&");
  return [...table.rows].map((row) => [...row.cells].map(text).join("\t")).join("\n");
}

async function copy(button, text = button.dataset.copy) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without a secure origin there is no clipboard for scripts but this old one.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.classList.add("copied");
  announce("Copied");
  setTimeout(() => button.classList.remove("copied"), 900);
}

function announce(text) {
  $("#announcer").textContent = text;
}

document.addEventListener("click", (event) => {
  const at = (selector) => event.target.closest(selector);
  if (at("[data-copy]")) copy(at("[data-copy]"));
  else if (at("[data-copy-table]")) copy(at("[data-copy-table]"), tableText($("#" + at("[data-copy-table]").dataset.copyTable)));
  else if (at("[data-close]")) at(".notice").remove();
  else if (at("[data-dialog]")) $("#" + at("[data-dialog]").dataset.dialog).showModal();
  else if (at("[data-theme-toggle]")) toggleTheme();
});

// A form that asks first: its question is in data-confirm.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.dataset.confirm || form.dataset.confirmed) return;
  event.preventDefault();
  const dialog = $("#confirm");
  $("h2", dialog).textContent = form.dataset.confirm;
  $("p", dialog).textContent = form.dataset.confirmDetail || "";
  $("button[value=yes]", dialog).textContent = form.dataset.confirmGo || "Go on";
  dialog.returnValue = "";
  dialog.onclose = () => {
    if (dialog.returnValue === "yes") {
      form.dataset.confirmed = "yes";
      form.requestSubmit(event.submitter || undefined);
    }
  };
  dialog.showModal();
});

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme === "dark"
    || (root.dataset.theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `foreman_theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=lax`;
}

// -- keyboard --------------------------------------------------------------------------------------------

let pending = "";

function rows() {
  return $$("tr[data-href], [data-row][data-href]");
}

function moveRow(by) {
  const all = rows();
  if (!all.length) return;
  const now = all.findIndex((row) => row.classList.contains("current"));
  const next = Math.min(all.length - 1, Math.max(0, now + by));
  all.forEach((row, index) => row.classList.toggle("current", index === next));
  all[next].scrollIntoView({ block: "nearest" });
  const link = $("a", all[next]);
  if (link) link.focus({ preventScroll: true });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "Escape" && typing) { event.target.blur(); return; }
  if ((typing && typing.type !== "checkbox") || document.querySelector("dialog[open]")) return;
  const current = rows().find((row) => row.classList.contains("current"));
  if (pending === "g") {
    pending = "";
    const link = $(`nav.pages a[data-key="${CSS.escape(event.key)}"]`);
    if (link) { event.preventDefault(); link.click(); }
    return;
  }
  const actions = {
    "/": () => $("#search") && $("#search").focus(),
    "?": () => $("#shortcuts").showModal(),
    j: () => moveRow(1),
    k: () => moveRow(-1),
    x: () => { const box = current && $("input[type=checkbox]", current); if (box) box.click(); },
    Enter: () => { if (current && event.target.tagName !== "BUTTON") location.assign(current.dataset.href); else return false; },
    n: () => location.assign("/ui/submit"),
    t: toggleTheme,
    g: () => { pending = "g"; setTimeout(() => { pending = ""; }, 1200); },
  };
  const action = actions[event.key];
  if (action && action() !== false) event.preventDefault();
});

// -- rows that stay where they are read: the current one is kept through a refresh -------------------------

let kept = null;
document.addEventListener("htmx:beforeSwap", () => {
  const current = rows().find((row) => row.classList.contains("current"));
  kept = current ? current.dataset.href : null;
});
document.addEventListener("htmx:afterSwap", () => {
  tickTimes();
  if (kept) for (const row of rows()) if (row.dataset.href === kept) row.classList.add("current");
  document.dispatchEvent(new CustomEvent("foreman:refreshed"));
});

// -- charts: the values under the pointer, or at the arrow keys --------------------------------------------

function readChart(chart, at) {
  const told = JSON.parse(chart.dataset.chart);
  const steps = told.lines.length ? told.lines[0].said.length : 0;
  if (!steps) return;
  const index = Math.max(0, Math.min(steps - 1, told.bars ? Math.floor(at * steps) : Math.round(at * (steps - 1))));
  const middle = told.bars ? (index + 0.5) / steps : index / Math.max(1, steps - 1);
  let tip = $(".tip", chart);
  if (!tip) {
    tip = document.createElement("div");
    tip.className = "tip";
    chart.append(tip);
  }
  const moment = new Date((told.began + index * told.step) * 1000);
  const lines = told.lines.map((line) => {
    const row = document.createElement("div");
    const name = document.createElement("span");
    name.className = line.look;
    name.textContent = line.name;
    const value = document.createElement("b");
    value.textContent = line.said[index];
    row.append(name, value);
    return row;
  });
  const head = document.createElement("div");
  head.textContent = told.bars ? moment.toISOString().slice(0, 10) : moment.toLocaleString([], told.step >= 240 ? { weekday: "short", hour: "2-digit", minute: "2-digit" } : { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  tip.replaceChildren(head, ...lines);
  const plot = $(".plot", chart);
  const x = middle * plot.clientWidth;
  tip.style.left = `${Math.max(0, Math.min(plot.clientWidth - tip.offsetWidth, x + 12 + tip.offsetWidth > plot.clientWidth ? x - tip.offsetWidth - 12 : x + 12))}px`;
  let rule = $(".rule", chart);
  if (!rule) {
    rule = document.createElement("div");
    rule.className = "rule";
    chart.append(rule);
  }
  rule.style.left = `${x}px`;
  chart.dataset.at = middle;
  return head.textContent + ": " + told.lines.map((line) => `${line.name} ${line.said[index]}`).join(", ");
}

function leaveChart(chart) {
  $$(".tip, .rule", chart).forEach((each) => each.remove());
}

document.addEventListener("pointermove", (event) => {
  const chart = event.target.closest && event.target.closest(".chart");
  for (const other of $$(".chart")) if (other !== chart && other !== document.activeElement) leaveChart(other);
  if (!chart) return;
  const box = $(".plot", chart).getBoundingClientRect();
  if (box.width) readChart(chart, (event.clientX - box.left) / box.width);
});
document.addEventListener("focusout", (event) => { const chart = event.target.closest(".chart"); if (chart) leaveChart(chart); });
document.addEventListener("keydown", (event) => {
  const chart = event.target.closest(".chart");
  if (!chart || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
  event.preventDefault();
  const told = JSON.parse(chart.dataset.chart);
  const steps = told.lines[0]?.said.length || 2;
  const at = Number(chart.dataset.at ?? 1) + (event.key === "ArrowLeft" ? -1 : 1) / (told.bars ? steps : Math.max(1, steps - 1));
  announce(readChart(chart, Math.max(0, Math.min(1, at))) || "");
});

// -- what an address points at is opened -------------------------------------------------------------------

function openTarget() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") target.open = true;
}

addEventListener("hashchange", openTarget);
openTarget();

// -- choosing jobs: how many are chosen, and which, through a refresh --------------------------------------

const chosen = {
  ids: new Set(),

  boxes: () => $$('input[name="job"][type="checkbox"]'),

  look() {
    this.ids = new Set(this.boxes().filter((box) => box.checked).map((box) => box.value));
    this.tell();
  },

  // The refreshed rows come unchosen from the server.
  restore() {
    for (const box of this.boxes()) box.checked = this.ids.has(box.value);
    this.tell();
  },

  tell() {
    const count = $("[data-chosen]"), all = $("[data-choose-all]");
    if (count) count.textContent = this.ids.size;
    if (!all) return;
    all.hidden = false;
    all.checked = this.ids.size > 0 && this.ids.size === this.boxes().length;
    all.indeterminate = this.ids.size > 0 && !all.checked;
  },
};

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-choose-all]")) for (const box of chosen.boxes()) box.checked = event.target.checked;
  if (event.target.matches('[data-choose-all], input[name="job"]')) chosen.look();
});
document.addEventListener("foreman:refreshed", () => chosen.restore());
addEventListener("pageshow", () => chosen.look());

// -- a job: what it says is followed to its end, unless the reader has scrolled up; one that ended is left alone --

let following = true;
const isAtEnd = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < 40;
const toEnd = () => { const box = $("[data-follow]"); if (box && following) box.scrollTop = box.scrollHeight; };
document.addEventListener("htmx:beforeSwap", () => {
  const box = $("[data-follow]");
  following = !box || isAtEnd(box);
});
document.addEventListener("foreman:refreshed", () => {
  toEnd();
  const live = $("#live[data-nudges]");
  if (live && !live.dataset.nudges) {
    document.body.dataset.nudges = "";
    nudges.close();
  }
});

// -- begin -------------------------------------------------------------------------------------------------

nudges.open();
setInterval(tickTimes, 1000);
toEnd();
