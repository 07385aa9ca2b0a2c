package soak

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"cotenant/internal/ledger"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name, value string
		want        ledger.Opt
	}{
		{"Retry-After", "7", ledger.Some(7_000_000)},
		{"Retry-After", " 0.5 ", ledger.Some(500_000)},
		{"Retry-After", "0", ledger.Some(0)},
		{"Retry-After", "-3", ledger.Some(0)},
		{"Retry-After", "1e99", ledger.Some(120_000_000)},
		{"Retry-After", "99999", ledger.Some(120_000_000)},
		{"Retry-After", "NaN", ledger.Opt{}},
		{"Retry-After", "soon", ledger.Opt{}},
		{"Retry-After", "", ledger.Opt{}},
		{"Retry-After", "Mon, 30 Nov 2026 12:00:09 GMT", ledger.Some(9_000_000)},
		{"Retry-After", "Monday, 30-Nov-26 12:00:09 GMT", ledger.Some(9_000_000)},
		{"Retry-After", "Sun, 29 Nov 2026 12:00:00 GMT", ledger.Some(0)},
		{"Retry-After-Ms", "250", ledger.Some(250_000)},
	} {
		h := http.Header{}
		h.Set(test.name, test.value)
		if got := retryAfter(h, now); got != test.want {
			t.Errorf("%s: %q gives %+v, want %+v", test.name, test.value, got, test.want)
		}
	}
	both := http.Header{"Retry-After": {"60"}, "Retry-After-Ms": {"x"}}
	if got := retryAfter(both, now); got != ledger.Some(60_000_000) {
		t.Errorf("a bad retry-after-ms hides a good Retry-After: %+v", got)
	}
}

func TestBackoff(t *testing.T) {
	for next, want := range map[int64]time.Duration{2: backoffBase, 3: 2 * backoffBase, 4: 4 * backoffBase, 50: backoffMax} {
		for range 100 {
			if d := backoff(next, ledger.Opt{}); d < want/2 || d > want {
				t.Fatalf("before attempt %d: %v, want %v to %v", next, d, want/2, want)
			}
		}
	}
	for range 100 {
		if d := backoff(2, ledger.Some(1_000_000)); d < time.Second || d > 1100*time.Millisecond {
			t.Fatalf("asked for 1 s: %v", d)
		}
	}
	if d := backoff(2, ledger.Some(0)); d != 0 {
		t.Errorf("asked for no wait: %v", d)
	}
}

func TestRedactor(t *testing.T) {
	u, _ := url.Parse("https://gpu7.example.internal:8443")
	r := newRedactor(u, "hf_abcdefgh", "", "Basic dXNlcjpwYXNz")
	for in, want := range map[string]string{
		"dial tcp 10.1.2.3:8443: connect: refused":               "dial tcp [address]: connect: refused",
		"lookup gpu7.example.internal on 8.8.8.8:53":             "lookup [endpoint] on [address]",
		"see https://gpu7.example.internal:8443/v1?k=1 for more": "see [address] for more",
		"token hf_abcdefgh is wrong":                             "token [secret] is wrong",
		"Incorrect API key provided: sk-proj-abcd1234.":          "Incorrect API key provided: [secret].",
		"at [2001:db8::1]:80 and fe80::1":                        "at [address] and [address]",
		"at 12:30:05, line 3:14":                                 "at 12:30:05, line 3:14",
		"two\nlines\t here":                                      "two lines here",
		"version 1.2.3 of llama.cpp":                             "version 1.2.3 of llama.cpp",
		"Basic dXNlcjpwYXNz":                                     "[secret]",
	} {
		if got := r.text(in); got != want {
			t.Errorf("%q\n gives %q\n want  %q", in, got, want)
		}
	}
	long := r.text(strings.Repeat("é", 500) + "\xff")
	if len(long) > ledger.MaxText || !utf8.ValidString(long) {
		t.Errorf("%d bytes, valid %v", len(long), utf8.ValidString(long))
	}
}

func FuzzRedactor(f *testing.F) {
	f.Add("dial 127.0.0.1:80: \xff")
	u, _ := url.Parse("http://host.test:80")
	r := newRedactor(u, "secret-key")
	f.Fuzz(func(t *testing.T, s string) {
		got := r.text(s)
		if len(got) > ledger.MaxText || !utf8.ValidString(got) {
			t.Errorf("%d bytes, valid %v: %q", len(got), utf8.ValidString(got), got)
		}
		if strings.Contains(got, "host.test:80") || strings.Contains(got, "secret-key") {
			t.Errorf("not redacted: %q", got)
		}
	})
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1234: "-1,234", 100000: "100,000"} {
		if got := grouped(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
