const figures = JSON.parse(document.getElementById("figures").textContent);
const plots = [...document.querySelectorAll(".plot")];
const picker = document.getElementById("picker");
const table = document.querySelector(".sortable");
const widths = new ResizeObserver(boxes => boxes.forEach(({ target }) => target.classList.toggle("more", target.scrollWidth > target.clientWidth + 1)));
document.querySelectorAll(".scroll").forEach(box => widths.observe(box));
const dark = matchMedia("screen and (prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)").matches;
const narrow = innerWidth < 600;

const drawn = new Set();     // plots are drawn when they are scrolled into view
const buttons = new Map();   // by plot and name: the legend
const toggled = new Map();   // by section and name: what the legend shows or hides
const ranges = {};           // by link: the part of the x axis that linked plots are zoomed to
let printing = false;

const plain = text => new DOMParser().parseFromString(text ?? "", "text/html").documentElement.textContent;
const owners = trace => [trace.meta ?? []].flat();
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function adapted(shade) {  // what is grey on white turns on black
  const grey = /^#(..)\1\1$/.exec(shade);
  if (!grey || !dark.matches || printing) return shade;
  const level = parseInt(grey[1], 16);
  return level < 0x80 || level > 0xc8 ? "#" + Math.max(255 - level, 0x30).toString(16).padStart(2, "0").repeat(3) : shade;
}

function fainter(shade) {  // not by a trace's opacity, which plotly.js ignores where traces fill to each other
  const alpha = parseInt(shade.slice(7) || "ff", 16);
  return shade.slice(0, 7) + Math.round(0.2 * alpha).toString(16).padStart(2, "0");
}

function current(place) {  // the traces that can be shown: of some plots those of a single policy
  const { data, layout: { meta } } = figures[place.id];
  const policy = data.some(trace => trace.meta === picker.value) ? picker.value : meta?.only;
  return meta?.only ? data.filter(trace => trace.meta === policy) : data;
}

function keyOf(place, trace) {
  const single = figures[place.id].layout.meta?.only || typeof trace.meta !== "string";
  return single ? trace.legendgroup ?? trace.name : trace.meta;
}

function isShown(place, trace) {
  const { only } = figures[place.id].layout.meta ?? {};
  const chosen = toggled.get(place.closest("section"))?.get(keyOf(place, trace));
  const picked = picker.value && trace.meta === picker.value;
  return chosen ?? !!(only || picked || trace.visible !== "legendonly");
}

function traces(place) {
  const { data, layout: { meta } } = figures[place.id], picked = picker.value, possible = current(place);
  const known = picked && !meta?.only && data.some(trace => owners(trace).includes(picked));
  const faded = name => known && name !== undefined && name !== picked;
  return data.map(trace => {
    const look = { ...trace, visible: possible.includes(trace) && isShown(place, trace) };
    if (Array.isArray(trace.meta)) {
      look.marker = { ...trace.marker, opacity: trace.meta.map(name => faded(name) ? 0.25 : 1) };
    }
    const shaded = shade => faded(trace.meta) && !Array.isArray(trace.meta) ? fainter(adapted(shade)) : adapted(shade);
    for (const part of ["line", "marker", "error_y"]) {
      if (typeof look[part]?.color === "string") look[part] = { ...look[part], color: shaded(look[part].color) };
    }
    if (look.fillcolor) look.fillcolor = shaded(look.fillcolor);
    return look;
  });
}

function layout(place) {
  const own = figures[place.id].layout, ink = colour("--ink"), rule = colour("--rule"), page = colour("--page");
  const look = {
    height: 360, margin: { l: 10, r: 16, t: printing ? 8 : 32, b: 10 }, font: { family: "inherit", size: 13, color: ink },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    hoverlabel: { bgcolor: page, font: { color: ink }, namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: ink },
    dragmode: touch ? false : "zoom",  // on a phone a finger scrolls the page
    uirevision: "kept", ...own, showlegend: false, ...(printing ? { width: 680 } : {}),
  };
  for (const name of ["xaxis", "yaxis"]) {
    look[name] = {
      automargin: true, separatethousands: true, exponentformat: "B", showline: true,
      gridcolor: rule, linecolor: rule, zerolinecolor: rule, ...own[name], title: { font: { size: 13 }, standoff: 10, ...own[name].title },
    };
    if (own[name].range) look[name].range = [...own[name].range];  // which plotly.js changes in place
    if (!narrow) continue;  // names of two parts take two lines, and so do long titles
    const short = text => plain(text).length > 20 ? text.slice(0, 19) + "…" : text;
    look[name].ticktext = own[name].ticktext?.map(text => plain(text).length > 20 ? text.split(", ").map(short).join(",<br>") : text);
    look[name].title.text = look[name].title.text.replace(/(.{10,26}) /g, "$1<br>");
  }
  const range = ranges[own.meta?.link];
  if (range) Object.assign(look.xaxis, { range: [...range], autorange: false });
  look.xaxis.uirevision = String(range);
  return look;
}

const config = {
  responsive: true, displaylogo: false, displayModeBar: true, showSendToCloud: false,
  modeBarButtons: [["zoomIn2d", "zoomOut2d", "pan2d", "zoom2d", "resetScale2d", {
    name: "save", title: "Save as SVG", icon: Plotly.Icons.camera, click: save,
  }]],
};

function save(place) {
  const look = { ...place.layout, showlegend: true, paper_bgcolor: colour("--page"), legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" } };
  const size = { width: place.clientWidth, height: place.clientHeight + 20 * place.data.length };
  Plotly.downloadImage({ data: place.data, layout: { ...look, ...size } }, { format: "svg", filename: place.id, ...size });
}

function render(place) {
  if (!drawn.has(place)) return;
  Plotly.react(place, traces(place), layout(place), config).then(() =>
    document.querySelectorAll("svg").forEach(svg => svg.setAttribute("aria-hidden", "true")));  // the place has a name
}

function draw(place) {
  if (drawn.has(place)) return;
  drawn.add(place);
  render(place);
  place.on("plotly_click", ({ points: [point] }) => {
    const name = [point.data.meta].flat()[Array.isArray(point.data.meta) ? point.pointNumber : 0];
    if ([...picker.options].some(option => option.value === name)) pick(name === picker.value ? "" : name);
  });
  place.on("plotly_relayout", change => follow(place, change));
}

function follow(place, change) {  // zooms the x axes that are linked to this one
  const { meta, xaxis } = figures[place.id].layout, link = meta?.link;
  const range = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
  const reset = change["xaxis.autorange"] || !!xaxis.range?.every((end, at) => end === range[at]);
  if (!link || !reset && range[0] === undefined) return;
  if (reset) delete ranges[link]; else ranges[link] = range;
  plots.filter(other => other !== place && figures[other.id].layout.meta?.link === link).forEach(render);
}

function pick(name) {
  picker.value = name;
  toggled.forEach(chosen => chosen.delete(name));  // what is picked is seen
  for (const row of table?.tBodies[0].rows ?? []) row.classList.toggle("picked", !!name && row.cells[0].dataset.value === name);
  plots.forEach(render);
  refresh();
}

const shapes = {  // of the markers that policies have
  circle: "M11.5 6a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
  square: "M12 3h6v6h-6z",
  diamond: "M15 1.8l4.2 4.2-4.2 4.2-4.2-4.2z",
  "triangle-up": "M15 2l4 7h-8z",
  "triangle-down": "M15 10l-4-7h8z",
  cross: "M13.7 2h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
  x: "M12.7 1.9l2.3 2.3 2.3-2.3 1.8 1.8-2.3 2.3 2.3 2.3-1.8 1.8-2.3-2.3-2.3 2.3-1.8-1.8 2.3-2.3-2.3-2.3z",
  star: "M15 1l1.3 3.4h3.6l-2.9 2.2 1.1 3.5-3.1-2.1-3.1 2.1 1.1-3.5-2.9-2.2h3.6z",
};

function swatch(trace) {
  const { color, dash, width } = { ...trace.line, ...(trace.type === "bar" ? trace.marker : {}) };
  const shade = adapted([trace.fill === "toself" ? trace.fillcolor : color].flat()[0]);
  const dashes = dash === "solid" || !dash ? "" : `stroke-dasharray="${dash.replaceAll("px", "")}"`;
  if (trace.type === "bar" || trace.fill === "toself") return `<rect width="30" height="12" fill="${shade}"/>`;
  const symbol = trace.marker?.symbol?.replace("-open", "");
  const mark = trace.marker ? `<path d="${shapes[symbol] ?? shapes.circle}" fill="${shade}"/>` : "";
  return (trace.mode === "markers" ? "" : `<path d="M0 6H30" stroke="${shade}" stroke-width="${Math.max(width, 1.5)}" ${dashes}/>`) + mark;
}

function entries(place) {  // of the legend: the first trace of each name
  const found = new Map();
  if (figures[place.id].layout.showlegend === false) return found;
  for (const trace of current(place)) {
    const key = keyOf(place, trace);
    if (trace.name && trace.showlegend !== false && !found.has(key)) found.set(key, trace);
  }
  return found;
}

function refresh() {
  for (const place of plots) {
    for (const [key, trace] of entries(place)) {
      const button = buttons.get(place).get(key);
      button?.setAttribute("aria-pressed", isShown(place, trace));
      if (button) button.firstElementChild.innerHTML = swatch(trace);
    }
  }
}

function prepare(place) {
  const { layout: own } = figures[place.id], section = place.closest("section");
  place.style.height = `${own.height ?? 360}px`;
  const names = entries(place);
  buttons.set(place, new Map());
  if (names.size) {
    const legend = document.createElement("ul");
    legend.className = "legend";
    for (const [key, trace] of names) {
      const item = legend.appendChild(document.createElement("li"));
      const button = item.appendChild(document.createElement("button"));
      buttons.get(place).set(key, button);
      button.type = "button";
      button.innerHTML = '<svg viewBox="0 0 30 12" aria-hidden="true"></svg>';
      button.append(plain(trace.name));
      button.addEventListener("click", () => {
        if (!toggled.has(section)) toggled.set(section, new Map());
        toggled.get(section).set(key, button.getAttribute("aria-pressed") !== "true");
        plots.filter(other => section.contains(other)).forEach(render);
        refresh();
      });
    }
    place.before(legend);
  }
  const heads = [section.querySelector("h2"), place.parentElement.querySelector("h3")];
  const axes = [own.yaxis, own.xaxis].map(axis => plain(axis.title?.text)).filter(Boolean).join(" against ");
  place.setAttribute("role", "figure");
  place.setAttribute("aria-label", ["Plot", ...heads.map(head => head?.textContent.trim()), axes].filter(Boolean).join(", "));
}

document.documentElement.classList.add("js");
plots.forEach(prepare);
picker.addEventListener("change", () => pick(picker.value));
refresh();

const seen = new IntersectionObserver(all => all.forEach(({ isIntersecting, target }) => {
  if (!isIntersecting) return;
  seen.unobserve(target);
  draw(target);
}), { rootMargin: "300px" });
plots.forEach(place => seen.observe(place));

function restyle() {
  plots.forEach(render);
  refresh();
}
dark.addEventListener("change", restyle);
addEventListener("beforeprint", () => {
  printing = true;
  plots.filter(place => !place.closest(".picture")).forEach(draw);  // the others are printed as images
  restyle();
});
addEventListener("afterprint", () => {
  printing = false;
  restyle();
});

const heads = [...table?.tHead.rows[0].cells ?? []];
heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
  const upward = head.getAttribute("aria-sort") !== "ascending";
  heads.forEach(other => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", upward ? "ascending" : "descending");
  const value = row => row.cells[column].dataset.value;
  const number = row => value(row) === "" ? NaN : Number(value(row));
  const order = (one, two) => column ? number(one) - number(two) : value(one).localeCompare(value(two));
  const rows = [...table.tBodies[0].rows];
  const missing = column ? rows.filter(row => Number.isNaN(number(row))) : [];  // last in either order
  const present = rows.filter(row => !missing.includes(row)).sort((one, two) => upward ? order(one, two) : order(two, one));
  table.tBodies[0].append(...present, ...missing);
}));
