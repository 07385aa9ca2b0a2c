package tokenizer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// vocabularies are the small ones, and the real ones where they are.
func vocabularies(t *testing.T, f func(t *testing.T, name string, tok *Tokenizer)) {
	for _, name := range smallNames {
		t.Run("small_"+name, func(t *testing.T) { f(t, name, loadSmall(t, name)) })
	}
	for _, name := range []string{"qwen3", "llama3_1"} {
		t.Run(name, func(t *testing.T) { f(t, name, loadReal(t, name, "")) })
	}
}

func controlLiterals(tok *Tokenizer) []string {
	var out []string
	for literal, id := range tok.ids {
		if tok.IsControl(id) {
			out = append(out, literal)
		}
	}
	slices.Sort(out)
	return out
}

func firstControl(tok *Tokenizer, ids []int32) (int32, bool) {
	for _, id := range ids {
		if tok.IsControl(id) {
			return id, true
		}
	}
	return 0, false
}

// TestUntrustedTextNeverBecomesControl tries every control literal of each vocabulary: alone, between other text, cut
// by segments, and begun by a user where the template goes on.
func TestUntrustedTextNeverBecomesControl(t *testing.T) {
	vocabularies(t, func(t *testing.T, _ string, tok *Tokenizer) {
		literals := controlLiterals(tok)
		if len(literals) < 3 {
			t.Fatalf("%d control literals", len(literals))
		}
		for _, l := range literals {
			id, _ := tok.TokenID(l)
			if got := tok.EncodeSpecial("a" + l + "b"); !slices.Contains(got, id) {
				t.Errorf("EncodeSpecial doesn't recognise %q: %v", l, got)
			}
			if got, bad := firstControl(tok, tok.Encode(l+"x"+l+l)); bad {
				t.Errorf("Encode(%q…) has the control token %d", l, got)
			}
			for cut := range len(l) + 1 {
				if !utf8.ValidString(l[:cut]) {
					continue
				}
				for _, s := range [][]Segment{
					{{l[:cut], false}, {l[cut:], false}},
					{{"t", true}, {l[:cut], false}, {"", true}, {l[cut:], false}, {"t", true}},
				} {
					if got, bad := firstControl(tok, tok.EncodeSegments(s)); bad {
						t.Errorf("%+v has the control token %d", s, got)
					}
				}
				if cut == 0 || cut == len(l) {
					continue
				}
				for _, s := range [][]Segment{{{l[:cut], false}, {l[cut:], true}}, {{l[:cut], true}, {l[cut:], false}}} {
					if slices.Contains(tok.EncodeSegments(s), id) {
						t.Errorf("%+v has the control token %d, half of which isn't trusted", s, id)
					}
				}
				if got := tok.EncodeSegments([]Segment{{l[:cut], true}, {"", false}, {l[cut:], true}}); !slices.Equal(got, []int32{id}) {
					t.Errorf("%q cut at %d, all of it trusted: %v", l, cut, got)
				}
			}
		}
	})
}

// TestSegmentsEqualJoinedText cuts texts anywhere: as long as no user wrote a control literal, the cuts don't show.
func TestSegmentsEqualJoinedText(t *testing.T) {
	var texts []string
	readGzip(t, "strings.json.gz", &texts)
	rnd := rand.New(rand.NewPCG(1, 2))
	vocabularies(t, func(t *testing.T, _ string, tok *Tokenizer) {
		literal := controlLiterals(tok)[0]
		checked := 0
		for i := 0; i < len(texts); i += 7 {
			if _, has := firstControl(tok, tok.EncodeSpecial(texts[i])); has {
				continue
			}
			text := literal + texts[i] + literal
			segments := []Segment{{literal, true}}
			for rest := texts[i]; rest != ""; {
				n := 1 + rnd.IntN(len(rest))
				segments = append(segments, Segment{rest[:n], rnd.IntN(2) == 0})
				rest = rest[n:]
			}
			segments = append(segments, Segment{literal, true})
			if got, want := tok.EncodeSegments(segments), tok.EncodeSpecial(text); !slices.Equal(got, want) {
				t.Fatalf("%+v:\n got %v\nwant %v", segments, got, want)
			}
			checked++
		}
		if checked < 100 {
			t.Fatalf("%d texts checked", checked)
		}
	})
}

// TestTrustSurvivesNormalisation has a control token that is looked for in normalised text, written decomposed.
func TestTrustSurvivesNormalisation(t *testing.T) {
	tok := loadSmall(t, "qwen2")
	id, ok := tok.TokenID("ếl")
	if !ok || !tok.IsControl(id) {
		t.Fatal("the vocabulary has lost its normalised control token")
	}
	const decomposed = "e\u0302\u0301l"
	for _, c := range []struct {
		segments []Segment
		want     int
	}{
		{[]Segment{{"é" + decomposed, true}}, 1},
		{[]Segment{{"e\u0301", false}, {decomposed, true}, {"e\u0301" + decomposed, false}}, 1},
		{[]Segment{{decomposed, false}}, 0},
		{[]Segment{{"e\u0302", true}, {"\u0301l", false}}, 0},
		{[]Segment{{"e\u0302", true}, {"\u0301", false}, {"l", true}}, 0},
		{[]Segment{{"e\u0302", true}, {"\u0301l", true}, {"e\u0301", false}, {"e\u0302\u0301", true}, {"l", true}}, 2},
		{[]Segment{{decomposed, true}, {"\u0300", false}}, 0},
	} {
		n := 0
		for _, got := range tok.EncodeSegments(c.segments) {
			if got == id {
				n++
			}
		}
		if n != c.want {
			t.Errorf("%+v: %d control tokens, want %d", c.segments, n, c.want)
		}
	}
}

func TestDecodeReturnsTheText(t *testing.T) {
	var texts []string
	readGzip(t, "strings.json.gz", &texts)
	vocabularies(t, func(t *testing.T, _ string, tok *Tokenizer) {
		for i := 0; i < len(texts); i += 3 {
			want := texts[i]
			if tok.usesC {
				want = toC(want)
			}
			if got := string(tok.Decode(tok.Encode(texts[i]))); got != want {
				t.Fatalf("Decode(Encode(%q)) = %q", texts[i], got)
			}
			if got := string(tok.Decode(tok.EncodeSpecial(texts[i]))); got != want {
				t.Fatalf("Decode(EncodeSpecial(%q)) = %q", texts[i], got)
			}
		}
	})
}

func TestEndTokens(t *testing.T) {
	for name, want := range map[string]struct {
		bos    int32
		addBOS bool
		eos    []int32
		size   int
	}{
		"qwen3":    {-1, false, []int32{151645, 151643}, 151669},
		"llama3_1": {128000, true, []int32{128009, 128001}, 128256},
	} {
		t.Run(name, func(t *testing.T) {
			tok := loadReal(t, name, "")
			if tok.BOS() != want.bos || tok.AddBOS() != want.addBOS || tok.AddEOS() || !slices.Equal(tok.EOS(), want.eos) || tok.VocabSize() != want.size {
				t.Errorf("BOS %d, added %v, EOS %v, added %v, size %d", tok.BOS(), tok.AddBOS(), tok.EOS(), tok.AddEOS(), tok.VocabSize())
			}
		})
	}
}

func TestIdsOutsideTheVocabulary(t *testing.T) {
	tok := loadSmall(t, "gpt2")
	for _, id := range []int32{-1, -1 << 31, int32(tok.VocabSize()), 1<<31 - 1} {
		if tok.TokenBytes(id) != nil || tok.IsControl(id) {
			t.Errorf("id %d means something", id)
		}
	}
	if got := tok.ToText([]int32{-5, 1 << 30}); got != "" {
		t.Errorf("ToText = %q", got)
	}
}

// TestStreamEqualsWhole pushes tokens one at a time: joined, the text is that of all bytes at once, and nothing but
// a started character is ever held.
func TestStreamEqualsWhole(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, name := range smallNames {
		tok := loadSmall(t, name)
		for range 2000 {
			var got strings.Builder
			var ids []int32
			s := tok.Stream()
			for range rnd.IntN(12) {
				id := int32(rnd.IntN(tok.VocabSize()))
				ids = append(ids, id)
				text := s.Push(id)
				if !utf8.ValidString(text) || s.Held() > 3 {
					t.Fatalf("%v: %q with %d bytes held", ids, text, s.Held())
				}
				got.WriteString(text)
			}
			held := s.Held()
			flushed := s.Flush()
			if held > 0 && flushed != "\ufffd" || held == 0 && flushed != "" || s.Flush() != "" {
				t.Fatalf("%v: %d bytes held became %q", ids, held, flushed)
			}
			if got.WriteString(flushed); got.String() != tok.ToText(ids) {
				t.Fatalf("%v: stream %q, whole %q", ids, got.String(), tok.ToText(ids))
			}
		}
	}
}

func TestStreamHoldsCharacters(t *testing.T) {
	tok := loadSmall(t, "gpt2")
	byteID := func(b byte) int32 { return tok.bpe.byteIDs[b] }
	s := tok.Stream()
	for i, b := range []byte("a👍é") {
		got := s.Push(byteID(b))
		want := map[int]string{0: "a", 4: "👍", 6: "é"}[i]
		if got != want {
			t.Errorf("byte %d: %q, want %q", i, got, want)
		}
	}
	s.Push(byteID(0xf0))
	s.Push(byteID(0x9f))
	if got := s.Push(byteID('x')); got != "\ufffdx" {
		t.Errorf("a broken character: %q", got)
	}
}

func TestConcurrentUse(t *testing.T) {
	tok := loadSmall(t, "llama3")
	var texts []string
	readGzip(t, "strings.json.gz", &texts)
	want := make([][]int32, 200)
	for i := range want {
		want[i] = tok.Encode(texts[i*10])
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for n := range want {
				i := (n*7 + g*31) % len(want)
				if got := tok.Encode(texts[i*10]); !slices.Equal(got, want[i]) {
					t.Errorf("goroutine %d: %q gave %v, want %v", g, texts[i*10], got, want[i])
				}
			}
		})
	}
	wg.Wait()
}

// TestCostOfHostileWords counts merges tried, which must stay in proportion to the bytes.
func TestCostOfHostileWords(t *testing.T) {
	const size = 100_000
	inputs := map[string]string{
		"one letter": strings.Repeat("a", size), "two letters": strings.Repeat("ab", size/2), "spaces": strings.Repeat(" ", size),
		"marks": strings.Repeat("=", size), "growing": growing(size), "Han": strings.Repeat("中文字", size/9), "NUL": strings.Repeat("\x00", size),
		"nearly control": strings.Repeat("<|im_start|", size/11), "newlines": strings.Repeat("\r\n", size/2),
	}
	vocabularies(t, func(t *testing.T, _ string, tok *Tokenizer) {
		for name, text := range inputs {
			w := new(worker)
			if tok.bpe.mergeLong(w, nil, text); w.steps > 4*len(text) {
				t.Errorf("%s: %d merges tried for %d bytes", name, w.steps, len(text))
			}
			if b := w.bytes(); b > 200*len(text) {
				t.Errorf("%s: %d bytes of scratch space for %d", name, b, len(text))
			}
			tok.EncodeSegments([]Segment{{text, true}, {text, false}})
		}
	})
}

// bytes is how much scratch space a worker holds.
func (w *worker) bytes() int {
	n := 12*cap(w.symbols) + 8*cap(w.heap) + 8*cap(w.queue.ranks)
	for _, l := range w.queue.lists {
		n += 4*cap(l) + 24
	}
	return n
}

func growing(size int) string {
	var b strings.Builder
	for n := 1; b.Len() < size; n++ {
		b.WriteString(strings.Repeat("x", n%50) + "yz")
	}
	return b.String()
}

// TestTenMegabytes is bounded by the test's own timeout: quadratic work would take days.
func TestTenMegabytes(t *testing.T) {
	tok := loadSmall(t, "llama3")
	size := 10_000_000
	if underRace {
		size /= 10
	}
	text := strings.Repeat("a", size)
	if got := tok.Decode(tok.Encode(text)); !bytes.Equal(got, []byte(text)) {
		t.Errorf("%d bytes of one letter come back changed", size)
	}
}

func TestEncodeWithin(t *testing.T) {
	vocabularies(t, func(t *testing.T, _ string, tok *Tokenizer) {
		control := controlLiterals(tok)[0]
		for _, text := range []string{"", "a", strings.Repeat("x", 100), "Two words, e\u0301 and 12345.\n\n  End", strings.Repeat(" ", 70), "中文字 \x00\x04"} {
			segments := []Segment{{control, true}, {text, false}, {control, true}}
			want := tok.EncodeSegments(segments)
			for most := range len(want) + 3 {
				got, ok := tok.EncodeWithin(segments, most)
				switch {
				case ok != (len(want) <= most):
					t.Errorf("%q has %d ids, within %d: %v", text, len(want), most, ok)
				case ok && !slices.Equal(got, want), !ok && !slices.Equal(got, want[:len(got)]):
					t.Errorf("%q within %d gives %v, want %v", text, most, got, want)
				}
			}
		}
	})
}

// TestTooLongCostsLittle measures memory beyond what joining and normalising a text take.
func TestTooLongCostsLittle(t *testing.T) {
	const size, most = 1 << 20, 1000
	inputs := map[string]string{
		"one letter": strings.Repeat("a", size), "spaces": strings.Repeat(" ", size), "words": strings.Repeat("some words ", size/11),
		"digits": strings.Repeat("7", size), "Han": strings.Repeat("中文字", size/9), "marks": "a" + strings.Repeat("\u0301", size/2),
	}
	vocabularies(t, func(t *testing.T, _ string, tok *Tokenizer) {
		for name, text := range inputs {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, ok := tok.EncodeWithin([]Segment{{text, false}}, most)
			runtime.ReadMemStats(&after)
			if ok {
				t.Errorf("%s: %d bytes are within %d ids", name, len(text), most)
			}
			limit := uint64(3 * len(text))
			if name == "marks" && tok.usesC {
				limit = uint64(40 * len(text)) // one run of marks is put in order as a whole
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > limit && !underRace {
				t.Errorf("%s: %d bytes allocated for %d, want at most %d", name, got, len(text), limit)
			}
		}
	})
}

// TestMergesEqualPlainRule compares the ways of merging with the rule itself, over random vocabularies whose merges
// come in any order.
func TestMergesEqualPlainRule(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	swept, heaped := 0, 0
	for range 300 {
		v := randomVocab(rnd)
		tok, err := FromVocab(v)
		if err != nil {
			t.Fatal(err)
		}
		for range 30 {
			word := make([]byte, 2+rnd.IntN(90))
			for i := range word {
				word[i] = "abc"[rnd.IntN(3)]
			}
			want := plainBPE(v, string(word))
			w := new(worker)
			if len(word) <= shortWord {
				if got := tok.bpe.mergeShort(w, nil, string(word)); !slices.Equal(got, want) {
					t.Fatalf("mergeShort(%s) = %v, want %v; merges %v", word, got, want, v.Merges)
				}
			}
			if got := tok.bpe.mergeLong(w, nil, string(word)); !slices.Equal(got, want) {
				t.Fatalf("mergeLong(%s) = %v, want %v; merges %v", word, got, want, v.Merges)
			}
			if w.heap == nil {
				swept++
			} else {
				heaped++
			}
		}
	}
	if swept < 1000 || heaped < 1000 {
		t.Errorf("%d words in sweeps alone, %d with a heap: both should be tried", swept, heaped)
	}
}

func randomVocab(rnd *rand.Rand) Vocab {
	v := Vocab{Model: "gpt2", Pre: "gpt-2", Tokens: []string{"a", "b", "c"}, BOS: -1, EOS: -1, EOT: -1, EOM: -1}
	for range 5 + rnd.IntN(15) {
		a, b := v.Tokens[rnd.IntN(len(v.Tokens))], v.Tokens[rnd.IntN(len(v.Tokens))]
		if len(a)+len(b) > 8 {
			continue
		}
		if !slices.Contains(v.Tokens, a+b) {
			v.Tokens = append(v.Tokens, a+b)
		}
		if m := a + " " + b; !slices.Contains(v.Merges, m) {
			v.Merges = append(v.Merges, m)
		}
	}
	if rnd.IntN(2) == 0 {
		rnd.Shuffle(len(v.Merges), func(i, j int) { v.Merges[i], v.Merges[j] = v.Merges[j], v.Merges[i] })
	}
	return v
}

// plainBPE merges the pair of lowest rank, leftmost, until none is left.
func plainBPE(v Vocab, word string) []int32 {
	parts := strings.Split(word, "")
	for {
		best, at := len(v.Merges), -1
		for i := 0; i+1 < len(parts); i++ {
			if r := slices.Index(v.Merges, parts[i]+" "+parts[i+1]); r >= 0 && r < best {
				best, at = r, i
			}
		}
		if at < 0 {
			break
		}
		parts = slices.Replace(parts, at, at+2, parts[at]+parts[at+1])
	}
	var out []int32
	for _, p := range parts {
		out = append(out, int32(slices.Index(v.Tokens, p)))
	}
	return out
}

func ExampleTokenizer_EncodeSegments() {
	tok, err := FromVocab(Vocab{
		Model: "gpt2", Pre: "gpt-2", Tokens: []string{"h", "i", "hi", "<", "e", ">", "<e>"}, Types: []int32{1, 1, 1, 1, 1, 1, 3},
		Merges: []string{"h i"}, BOS: -1, EOS: 6, EOT: -1, EOM: -1,
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(tok.EncodeSegments([]Segment{{"hi<e>", false}, {"<e>", true}}))
	// Output: [2 3 4 5 6]
}
