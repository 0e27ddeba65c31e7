// The last images as a row of tiles: one of them is chosen, by click or by the arrow keys.

const TILES = 60;

class Strip {
  constructor(root, { onChoose, textOf }) {
    Object.assign(this, { root, onChoose, textOf, tiles: new Map(), entries: [], chosen: null, waiting: null });
    root.addEventListener("keydown", (event) => this.onKey(event));
    root.addEventListener("click", (event) => this.onClick(event));
    for (const kind of ["pointerleave", "focusout"]) root.addEventListener(kind, () => setTimeout(() => this.catchUp(), 0));
    this.seen = new IntersectionObserver((changes) => {
      for (const { isIntersecting, target } of changes) if (isIntersecting) this.loadPreview(target);
    }, { root, rootMargin: "0px 300px" });
  }

  // The row does not move while it has the pointer or the focus.
  get held() {
    return this.root.matches(":hover, :focus-within");
  }

  catchUp() {
    if (this.waiting && !this.held) this.show(this.waiting);
  }

  show(entries, { force = false } = {}) {
    if (this.held && !force && this.entries.length) {
      this.waiting = entries;
      return;
    }
    this.waiting = null;
    this.entries = entries.slice(-TILES).reverse();
    const kept = new Set(this.entries);
    for (const [entry, tile] of this.tiles) if (!kept.has(entry)) this.drop(entry, tile);
    const focused = document.activeElement;
    for (const entry of this.entries) if (!this.tiles.has(entry)) this.tiles.set(entry, this.makeTile(entry));
    const wanted = this.entries.map((entry) => this.tiles.get(entry));
    wanted.forEach((tile, index) => {
      if (this.root.children[index] !== tile) this.root.insertBefore(tile, this.root.children[index] ?? null);
    });
    if (this.root.contains(focused)) focused.focus({ preventScroll: true });
    this.markChosen();
  }

  drop(entry, tile) {
    this.seen.unobserve(tile);
    tile.remove();
    this.tiles.delete(entry);
  }

  makeTile(entry) {
    const tile = make("li", `tile ${stateOf(entry)}`);
    tile.setAttribute("role", "option");
    tile.entry = entry;
    const image = make("img");
    image.alt = "";
    image.hidden = true;
    const { label, caption } = this.textOf(entry);
    tile.setAttribute("aria-label", label);
    tile.title = entry.name;
    tile.append(image, make("span", "caption", caption));
    this.seen.observe(tile);
    return tile;
  }

  // Loaded by `request`, because an image address in `src` is requested without the token.
  async loadPreview(tile) {
    const { entry } = tile;
    if (!entry.preview && entry.thumbnail && !entry.asked) {
      entry.asked = true;
      const response = await request(entry.thumbnail).catch(() => null);
      if (response) entry.preview = URL.createObjectURL(await response.blob());
      entry.onPreview?.();
    }
    if (!entry.preview) return;
    const image = tile.querySelector("img");
    image.onerror = () => (image.hidden = true); // such as a file that is no image
    image.onload = () => (image.hidden = false);
    image.src = entry.preview;
  }

  choose(entry, { focus = false, reveal = true } = {}) {
    this.chosen = entry;
    this.markChosen();
    const tile = this.tiles.get(entry);
    if (focus) tile?.focus({ preventScroll: true });
    if (reveal && tile) this.reveal(tile);
  }

  // Scrolls the row alone, never the page.
  reveal(tile) {
    const [box, view] = [tile.getBoundingClientRect(), this.root.getBoundingClientRect()];
    if (box.left < view.left) this.root.scrollLeft -= view.left - box.left + 16;
    if (box.right > view.right) this.root.scrollLeft += box.right - view.right + 16;
  }

  markChosen() {
    const first = this.tiles.get(this.chosen) ?? this.tiles.get(this.entries[0]);
    for (const tile of this.tiles.values()) {
      tile.tabIndex = tile === first ? 0 : -1;
      tile.setAttribute("aria-selected", String(tile.entry === this.chosen));
    }
  }

  onClick(event) {
    const tile = event.target.closest(".tile");
    if (tile) this.onChoose(tile.entry, { focus: true });
  }

  onKey(event) {
    const at = this.entries.indexOf(document.activeElement?.entry);
    const last = this.entries.length - 1;
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last, Enter: at, " ": at }[event.key];
    if (at < 0 || next === undefined) return;
    event.preventDefault();
    this.onChoose(this.entries[Math.max(0, Math.min(last, next))], { focus: true });
  }
}
