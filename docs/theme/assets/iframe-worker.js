/* Pages that are opened as files may not start workers. There, and there alone, a hidden frame takes a worker's place:
   it runs the worker's script, and messages go to and fro as they would. */
"use strict";

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.document.write("<!doctype html><body></body>");
      inside.document.close();
      inside.IFrameWorker = true; // the theme's search asks for it before it imports scripts of languages
      inside.postMessage = (data) => this.receive(data);
      inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => this.run(each)), Promise.resolve());
      this.run(url).then(() => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      });
    }

    run(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script");
        script.onload = resolve;
        script.onerror = reject;
        script.src = new URL(url, document.baseURI).href;
        this.frame.contentDocument.body.appendChild(script);
      });
    }

    receive(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new this.frame.contentWindow.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
