// Search when the site is read from a folder.
//
// The theme searches in a worker, and a browser starts none from `file:`. There, this puts a hidden frame in its place:
// the same script runs in it, and what either side posts becomes a `message` event at the other. The theme would load
// such a script from another host; it finds this one by its name.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((resolve) => this.frame.addEventListener("load", resolve));
      this.frame.srcdoc = `<!doctype html><script src="${new URL(address, location.href)}" defer></script>`;
      document.body.append(this.frame);
      // The script's own `postMessage` is looked up when it answers, so it is enough to set it once the frame is there.
      this.ready.then(() => {
        this.frame.contentWindow.postMessage = (data) =>
          this.dispatchEvent(new MessageEvent("message", { data }));
      });
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
