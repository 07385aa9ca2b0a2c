package openai

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

type sseVector struct {
	Name   string
	Stream string
	Hex    string
	Events []struct {
		Type, Data, DataHex string
		Unterminated        bool
	}
	Comments int
}

func (v sseVector) bytes(t testing.TB) []byte {
	if v.Hex == "" {
		return []byte(v.Stream)
	}
	b, err := hex.DecodeString(v.Hex)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (v sseVector) want(t testing.TB) string {
	var s strings.Builder
	for _, e := range v.Events {
		data := []byte(e.Data)
		if e.DataHex != "" {
			var err error
			if data, err = hex.DecodeString(e.DataHex); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Fprintf(&s, "%q %q %v\n", e.Type, data, e.Unterminated)
	}
	return s.String()
}

func sseCorpus(t testing.TB) []sseVector {
	t.Helper()
	files, err := filepath.Glob("testdata/sse/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no corpus under testdata/sse (%v)", err)
	}
	var all []sseVector
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var vs []sseVector
		if err := json.Unmarshal(b, &vs); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		all = append(all, vs...)
	}
	return all
}

// events reads r to its end.
func events(r io.Reader, limit int) (list string, seen SSESeen, err error) {
	var s strings.Builder
	sse := NewSSEReader(r, limit)
	for {
		e, err := sse.Next()
		if err != nil {
			return s.String(), sse.Seen(), err
		}
		fmt.Fprintf(&s, "%q %q %v\n", e.Type, e.Data, e.Unterminated)
	}
}

// chunked hands out b in the sizes that cut gives, empty reads among them.
type chunked struct {
	b   []byte
	cut func() int
	err error
}

func (c *chunked) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, c.err
	}
	n := copy(p[:min(len(p), c.cut())], c.b)
	c.b = c.b[n:]
	return n, nil
}

func TestSSECorpus(t *testing.T) {
	for _, v := range sseCorpus(t) {
		t.Run(v.Name, func(t *testing.T) {
			b := v.bytes(t)
			readers := map[string]io.Reader{
				"whole": bytes.NewReader(b), "bytes": iotest.OneByteReader(bytes.NewReader(b)),
				"data with EOF": iotest.DataErrReader(bytes.NewReader(b)),
			}
			for name, r := range readers {
				got, seen, err := events(r, 0)
				if err != io.EOF || got != v.want(t) || seen.Comments != v.Comments {
					t.Errorf("%s: %d comments, error %v, events\n%swant %d comments and\n%s", name, seen.Comments, err, got, v.Comments, v.want(t))
				}
			}
		})
	}
}

func TestSSESeen(t *testing.T) {
	for _, test := range []struct {
		stream string
		want   SSESeen
	}{
		{"data: a\n\n", SSESeen{}},
		{"\ufeffdata: a\n\n", SSESeen{BOM: true}},
		{"data:a\n\n", SSESeen{NoSpace: true}},
		{"data: a\r\n\r\n", SSESeen{CR: true}},
		{"data: a\ndata: b\n\n", SSESeen{MultiLine: true}},
		{":\n\ndata:\n\n", SSESeen{Comments: 1, Empty: 1}},
	} {
		if _, got, _ := events(strings.NewReader(test.stream), 0); got != test.want {
			t.Errorf("%q: %+v, want %+v", test.stream, got, test.want)
		}
	}
}

func TestSSECutByError(t *testing.T) {
	reset := errors.New("connection reset")
	got, _, err := events(&chunked{b: []byte("data: a\n\ndata: b\n"), cut: func() int { return 3 }, err: reset}, 0)
	if want := "\"\" \"a\" false\n"; got != want || err != reset {
		t.Errorf("got %q, %v; want %q and the source's error", got, err, want)
	}
}

func TestSSELimit(t *testing.T) {
	const limit = 1 << 16
	for _, test := range []struct {
		name   string
		stream string
		want   error
	}{
		{"line at the limit", "data:" + strings.Repeat("x", limit) + "\n\n", io.EOF},
		{"line beyond", "data:" + strings.Repeat("x", limit+1) + "\n\n", ErrEventTooLong},
		{"endless line", "data:" + strings.Repeat("x", 4*limit), ErrEventTooLong},
		{"many lines beyond", strings.Repeat("data:"+strings.Repeat("x", 99)+"\n", limit/100+2) + "\n", ErrEventTooLong},
		{"endless comment", ":" + strings.Repeat("x", 4*limit), ErrEventTooLong},
	} {
		if _, _, err := events(strings.NewReader(test.stream), limit); err != test.want {
			t.Errorf("%s: error %v, want %v", test.name, err, test.want)
		}
	}
	big := "data:" + strings.Repeat("x", DefaultEventLimit) + "\n\n"
	if got, _, err := events(strings.NewReader(big), 0); err != io.EOF || len(got) < DefaultEventLimit {
		t.Errorf("an event of %d bytes: %d bytes read, %v", DefaultEventLimit, len(got), err)
	}
}

func TestSSENoProgress(t *testing.T) {
	_, _, err := events(&chunked{b: []byte("data: a"), cut: func() int { return 0 }}, 0)
	if err != io.ErrNoProgress {
		t.Errorf("a source that never moves: %v, want %v", err, io.ErrNoProgress)
	}
}

func TestSSEResetForgets(t *testing.T) {
	r := NewSSEReader(strings.NewReader("event: x\ndata: a\r"), 0)
	for range 2 {
		r.Next()
	}
	r.Reset(strings.NewReader("\ndata: b\n\n"), 0)
	e, err := r.Next()
	if err != nil || string(e.Data) != "b" || len(e.Type) > 0 {
		t.Errorf("after Reset: %q %q, %v", e.Type, e.Data, err)
	}
}

// FuzzSSE holds that the cutting of the bytes changes nothing.
func FuzzSSE(f *testing.F) {
	for i, v := range sseCorpus(f) {
		f.Add(v.bytes(f), uint64(i))
	}
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		const limit = 1 << 12
		want, seen, wantErr := events(bytes.NewReader(b), limit)
		rng := rand.New(rand.NewPCG(seed, 1))
		got, gotSeen, err := events(&chunked{b: b, err: io.EOF, cut: func() int { return rng.IntN(9) }}, limit)
		if got != want || err != wantErr || gotSeen != seen {
			t.Errorf("re-cut: %+v, %v, events\n%swhole: %+v, %v, events\n%s", gotSeen, err, got, seen, wantErr, want)
		}
	})
}

func BenchmarkSSEChunk(b *testing.B) {
	stream := []byte(strings.Repeat("data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}],\"usage\":null}\n\n", 100))
	sse, chunk := NewSSEReader(nil, 0), new(StreamChunk)
	b.SetBytes(int64(len(stream)))
	b.ReportAllocs()
	for b.Loop() {
		sse.Reset(bytes.NewReader(stream), 0)
		for {
			e, err := sse.Next()
			if err != nil {
				break
			}
			if err := chunk.Decode(e.Data); err != nil {
				b.Fatal(err)
			}
		}
	}
}
