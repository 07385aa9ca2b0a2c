package container

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cotenant/internal/container/enginetest"
)

// What a preview prints is what a run sends, to the byte, and a run sends nothing else that changes anything.
func TestPreviewIsWhatRuns(t *testing.T) {
	e, image := engineWith(t, enginetest.QuietHook)
	lack(t, e, image)
	var mu sync.Mutex
	var sent []string
	var body []byte
	socket := between(t, e, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		mu.Lock()
		if r.Method != http.MethodGet {
			path := regexp.MustCompile(`^/v[0-9.]+`).ReplaceAllString(r.URL.RequestURI(), "")
			sent = append(sent, r.Method+" "+regexp.MustCompile(`[0-9a-f]{64}/`).ReplaceAllString(path, "{id}/"))
			if strings.HasPrefix(path, "/containers/create") {
				body, _ = io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
		}
		mu.Unlock()
		next.ServeHTTP(w, r)
	})
	p := planFor(t, e, image, "exit")
	p.o.Env = []string{"DOCKER_HOST=unix://" + socket}
	var text bytes.Buffer
	if err := p.WritePreview(&text); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var planned []string
	for _, r := range p.Requests {
		planned = append(planned, r.Method+" "+r.Path)
		if !strings.Contains(text.String(), r.Method+" "+r.Path) {
			t.Errorf("the preview has no %s %s", r.Method, r.Path)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for _, s := range sent {
		if !slices.Contains(planned, s) && !strings.HasPrefix(s, "POST /containers/{id}/wait") { // it changes nothing
			t.Errorf("sent, not planned: %s", s)
		}
	}
	var printed, got any
	part := text.String()[strings.Index(text.String(), "POST /containers/create"):]
	if err := json.NewDecoder(strings.NewReader(part[strings.Index(part, "{"):])).Decode(&printed); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(printed, got); d != "" {
		t.Errorf("printed and sent differ: %s", d)
	}
	for _, want := range []string{image.Reference(), testUUID, p.Binary.SHA256, p.SHA256, fmt.Sprintf("ends by itself after %v", p.o.Deadline+p.o.grace), "network_mode: none"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the preview doesn't say %s", want)
		}
	}
	refused := planOf(t, line("privileged: true")...)
	text.Reset()
	if err := refused.WritePreview(&text); err != nil || !strings.Contains(text.String(), "privileged: privileged is true") || strings.Contains(text.String(), "POST") {
		t.Errorf("%v: %s", err, text.String())
	}
}
