package observe

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// Absent and zero are two things, in Go and in JSON.
func TestValue(t *testing.T) {
	zero, none := Got("call", 0), None[int]("call", 801, "CUDA_ERROR_NOT_SUPPORTED")
	for _, c := range []struct {
		v    Value[int]
		want string
		ok   bool
	}{
		{zero, `{"value":0,"call":"call"}`, true},
		{none, `{"call":"call","code":801,"reason":"CUDA_ERROR_NOT_SUPPORTED"}`, false},
	} {
		b, err := json.Marshal(c.v)
		if err != nil || string(b) != c.want {
			t.Errorf("%s, want %s", b, c.want)
		}
		var back Value[int]
		if err := json.Unmarshal(b, &back); err != nil || back.OK() != c.ok {
			t.Errorf("%s: %+v", b, back)
		}
		if x, ok := back.Get(); ok != c.ok || x != 0 {
			t.Errorf("%s: %d, %v", b, x, ok)
		}
	}
	if none.Or(7) != 7 || zero.Or(7) != 0 {
		t.Error("Or")
	}
}

func TestStatuses(t *testing.T) {
	seen := make(map[Status]bool)
	for _, s := range Statuses() {
		if !s.Valid() || seen[s] {
			t.Errorf("%s", s)
		}
		seen[s] = true
	}
	if len(seen) != 12 || Status("").Valid() || Status("ok").Valid() {
		t.Errorf("%d statuses", len(seen))
	}
}

func TestClip(t *testing.T) {
	for in, want := range map[string]string{
		"":                             "",
		"a\x00b\nc\x7f":                "a b c ",
		strings.Repeat("x", 300):       strings.Repeat("x", 200),
		strings.Repeat("é", 150):       strings.Repeat("é", 100),
		strings.Repeat("x", 199) + "é": strings.Repeat("x", 199),
		"\xff\xfe":                     "\ufffd\ufffd",
	} {
		if got := Clip(in); got != want || !utf8.ValidString(got) {
			t.Errorf("%.20q: %q", in, got)
		}
	}
}
