package tokenizer

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"unicode"
	"unicode/utf8"

	"cotenant/internal/testenv"
)

// oracle is what tools/oracle/tokenizer.py writes.
type oracle struct {
	SHA256  string
	Plain   [][]int32
	Special map[string][]int32
	Decoded []decodedJSON
}

type decodedJSON struct {
	ids  []int32
	text string
}

func (d *decodedJSON) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&d.ids, &d.text})
}

func readGzip(t testing.TB, name string, v any) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(z).Decode(v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// compare counts every string whose ids differ, and reports the first few.
func compare(t *testing.T, tok *Tokenizer, texts []string, want *oracle) {
	t.Helper()
	if len(texts) != len(want.Plain) || len(want.Special) == 0 || len(want.Decoded) == 0 {
		t.Fatalf("%d strings, %d plain and %d special answers, %d decoded", len(texts), len(want.Plain), len(want.Special), len(want.Decoded))
	}
	wrong := 0
	check := func(what string, i int, got, want []int32) {
		if slices.Equal(got, want) {
			return
		}
		if wrong++; wrong <= 5 {
			t.Errorf("%s of string %d, %.200q:\n got %v\nwant %v", what, i, texts[i], got, want)
		}
	}
	for i, s := range texts {
		check("Encode", i, tok.Encode(s), want.Plain[i])
		special, ok := want.Special[strconv.Itoa(i)]
		if !ok {
			special = want.Plain[i]
		}
		check("EncodeSpecial", i, tok.EncodeSpecial(s), special)
	}
	if wrong > 0 {
		t.Errorf("%d of %d encodings differ from Hugging Face's", wrong, 2*len(texts))
	}
	for _, d := range want.Decoded {
		if got := tok.ToText(d.ids); got != d.text {
			t.Errorf("ToText(%v) = %q, want %q", d.ids, got, d.text)
		}
	}
}

// loaded keeps what has been read: a tokenizer doesn't change, and loading the large ones takes most of the tests'
// time.
var loaded sync.Map

// loadReal reads a real tokenizer from COTENANT_MODEL_DIR.
func loadReal(t testing.TB, name, wantSHA string) *Tokenizer {
	t.Helper()
	path := testenv.Model(t, name+"/tokenizer.json")
	if tok, ok := loaded.Load(path); ok && wantSHA == "" {
		return tok.(*Tokenizer)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(testenv.Model(t, name+"/tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(file); wantSHA != "" && hex.EncodeToString(sum[:]) != wantSHA {
		t.Fatalf("%s isn't the file that the oracle was made from", path)
	}
	tok, err := FromJSON(file, config)
	if err != nil {
		t.Fatal(err)
	}
	loaded.Store(path, tok)
	return tok
}

func TestEqualsHuggingFace(t *testing.T) {
	var texts []string
	readGzip(t, "strings.json.gz", &texts)
	if len(texts) < 3000 {
		t.Fatalf("%d strings", len(texts))
	}
	for _, name := range []string{"qwen3", "llama3_1"} {
		t.Run(name, func(t *testing.T) {
			var want oracle
			readGzip(t, name+".json.gz", &want)
			compare(t, loadReal(t, name, want.SHA256), texts, &want)
		})
	}
}

// smallNames are the vocabularies that tools/oracle/tokenizer.py trained, by pre-tokenizer.
var smallNames = []string{"gpt2", "smollm", "qwen2", "llama3"}

func loadSmall(t testing.TB, name string) *Tokenizer {
	t.Helper()
	file, err := os.ReadFile(filepath.Join("testdata", "small_"+name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := FromJSON(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestSmallEqualsHuggingFace(t *testing.T) {
	var small struct {
		Strings []string
		Oracles map[string]*oracle
	}
	readGzip(t, "small.json.gz", &small)
	for _, name := range smallNames {
		t.Run(name, func(t *testing.T) { compare(t, loadSmall(t, name), small.Strings, small.Oracles[name]) })
	}
}

// TestClasses compares every character's class. Those that Go's Unicode has and the oracle's hasn't may differ.
func TestClasses(t *testing.T) {
	var ranges []classRange
	readGzip(t, "classes.json.gz", &ranges)
	if len(ranges) < 600 {
		t.Fatalf("%d ranges", len(ranges))
	}
	want := make([]class, unicode.MaxRune+1)
	for _, r := range ranges {
		for c := r.first; c <= r.last; c++ {
			want[c] = map[string]class{"L": letter, "N": number, "S": space}[r.class]
		}
	}
	wrong := 0
	for c := range want {
		if !utf8.ValidRune(rune(c)) {
			continue
		}
		got, _ := classAt(classes(), string(rune(c)), 0)
		if got == newline {
			got = space
		}
		if newer := want[c] == other && unicode.Version != "15.0.0"; got != want[c] && !newer {
			if wrong++; wrong < 10 {
				t.Errorf("U+%04X: class %d, want %d", c, got, want[c])
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d characters are in another class than in Hugging Face's splits", wrong)
	}
}

type classRange struct {
	first, last rune
	class       string
}

func (r *classRange) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&r.first, &r.last, &r.class})
}
