package soak

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cotenant/internal/ledger"
)

func TestRefusedBeforeAnyRequest(t *testing.T) {
	nobody := func(context.Context, string, string) (net.Conn, error) { panic("a request was made") }
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	one, two, fine := 1.0, 2.0, 0.1234567
	for _, test := range []struct {
		change func(o *Options)
		want   string
	}{
		{func(o *Options) { o.Endpoint = "127.0.0.1:8080" }, "isn't an http"},
		{func(o *Options) { o.Endpoint = "http://127.0.0.1:8080/v1?x=1" }, "query"},
		{func(o *Options) { o.Endpoint = "http://u:p@127.0.0.1:8080" }, "password"},
		{func(o *Options) { o.Endpoint = "http://127.0.0.1:65536" }, "port 65536"},
		{func(o *Options) { o.Endpoint = "http://127.0.0.1:0" }, "port 0"},
		{func(o *Options) { o.Model = "\xff" }, "UTF-8"},
		{func(o *Options) { o.MaxTokens = 1<<24 + 1 }, "want 1 to 16777216"},
		{func(o *Options) { o.Endpoint, o.Contexts = "http://192.0.2.1", 1001 }, "--max-spend-tokens"},
		{func(o *Options) { o.Endpoint, o.Contexts, o.Confirm = "http://10.0.0.1", 1001, true }, "--max-spend-tokens"},
		{func(o *Options) { o.Endpoint, o.Contexts, o.MaxSpendTokens = "http://[2001:db8::1]:80", 1001, 5 }, "--confirm"},
		{func(o *Options) { o.Contexts = 0 }, "contexts 0"},
		{func(o *Options) { o.Workers = 0 }, "workers 0"},
		{func(o *Options) { o.Contract = "chaos" }, "contract"},
		{func(o *Options) { o.Out = full }, "isn't empty"},
		{func(o *Options) { o.Resume = true }, "no run to go on with"},
		{func(o *Options) { o.BodyJSON = []byte(`{"model":"x"}`) }, `"model"`},
		{func(o *Options) { o.BodyJSON = []byte(`{"stream":false}`) }, `"stream"`},
		{func(o *Options) { o.BodyJSON = []byte(`{"n":2}`) }, `"n"`},
		{func(o *Options) { o.BodyJSON = []byte(`[1]`) }, "object"},
		{func(o *Options) { o.BodyJSON = []byte(`{"a":1`) }, "body's JSON"},
		{func(o *Options) { o.BodyJSON = []byte(`{"a":1,"a":2}`) }, "twice"},
		{func(o *Options) { o.BodyJSON = []byte(`{"a":1} x`) }, "behind"},
		{func(o *Options) { o.BodyJSON, o.Temperature = []byte(`{"temperature":1}`), &one }, "given twice"},
		{func(o *Options) { o.MetricsURL = "localhost:9090" }, "metrics-url"},
		{func(o *Options) { o.TopP = &two }, "top-p"},
		{func(o *Options) { o.Temperature = &fine }, "six decimals"},
		{func(o *Options) { o.GPU.From = "0" }, "gpu"},
		{func(o *Options) { o.Nonce = "a b" }, "nonce"},
		{func(o *Options) { o.Nonce = strings.Repeat("n", 129) }, "nonce"},
		{func(o *Options) { o.Header = http.Header{"Content-Length": {"1"}} }, "Content-Length"},
		{func(o *Options) { o.Header = http.Header{"A b": {"1"}} }, "isn't valid"},
		{func(o *Options) { o.Header = http.Header{"A": {"1\r\nB: 2"}} }, "line break"},
		{func(o *Options) { o.Header, o.APIKey = http.Header{"authorization": {"x"}}, "k" }, "API key"},
		{func(o *Options) { o.Contexts, o.Out = ledger.MaxContexts, "/proc/nowhere" }, "free"},
	} {
		o := options(t, nil, 100)
		o.Dial = nobody
		test.change(&o)
		res, err := Run(context.Background(), o)
		if ExitCode(res, err) != ExitUsage || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want one with %q", err, test.want)
		}
	}
}

func TestParseEndpoint(t *testing.T) {
	for in, want := range map[string]string{
		"http://127.0.0.1:8080":                   "http://127.0.0.1:8080/v1/chat/completions http://127.0.0.1:8080",
		"http://127.0.0.1:8080/":                  "http://127.0.0.1:8080/v1/chat/completions http://127.0.0.1:8080",
		"http://127.0.0.1:8080/v1/":               "http://127.0.0.1:8080/v1/chat/completions http://127.0.0.1:8080",
		"https://example.org/api/v1":              "https://example.org/api/v1/chat/completions https://example.org/api",
		"https://example.org/v1/chat/completions": "https://example.org/v1/chat/completions https://example.org",
		"http://[::1]:8000/gateway":               "http://[::1]:8000/gateway/v1/chat/completions http://[::1]:8000/gateway",
	} {
		got, err := parseEndpoint(in)
		if err != nil || got.chat+" "+got.root.String() != want {
			t.Errorf("%s: %s %s, %v", in, got.chat, got.root, err)
		}
	}
	for in, want := range map[string]string{"http://localhost": "loopback", "http://127.9.9.9": "loopback", "http://[::1]": "loopback", "http://192.168.1.1": "private",
		"http://[fe80::1]": "private", "http://8.8.8.8": "public", "http://[::ffff:127.0.0.1]": "loopback"} {
		tg, err := parseEndpoint(in)
		if err != nil || scopeOf(context.Background(), tg.root) != want {
			t.Errorf("%s isn't %s: %v", in, want, err)
		}
	}
}
