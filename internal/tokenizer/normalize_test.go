package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// TestComposeEqualsNorm compares with the library wherever it can be asked: texts without long runs or recent marks.
func TestComposeEqualsNorm(t *testing.T) {
	rnd := rand.New(rand.NewPCG(8, 9))
	marks := []rune{0x300, 0x301, 0x302, 0x304, 0x307, 0x308, 0x323, 0x327, 0x328, 0x331, 0x334, 0x345, 0x5b0, 0x5bc, 0x64b, 0x670, 0x94d, 0x3099}
	bases := []rune("aeiouqAEOUsσωקक가각\u1100\u1161\u11a8\u11b0かハ\u0344\u0958\u2126ẛ\u1e9bǭ\x00 ")
	for range 20_000 {
		var s []rune
		for range 1 + rnd.IntN(5) {
			s = append(s, bases[rnd.IntN(len(bases))])
			for range rnd.IntN(5) {
				s = append(s, marks[rnd.IntN(len(marks))])
			}
		}
		if got, want := compose(string(s)), norm.NFC.String(string(s)); got != want {
			t.Fatalf("compose(%+q) = %+q, want %+q", string(s), got, want)
		}
	}
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if s := string(r); !isRecent(r) && compose(s) != norm.NFC.String(s) {
			t.Errorf("compose(%+q) = %+q", s, compose(s))
		}
	}
}

// TestLongRunsOfMarks: the library would put U+034F in between.
func TestLongRunsOfMarks(t *testing.T) {
	long := "e" + strings.Repeat("\u0301", 100)
	if got, want := toC(long), "é"+strings.Repeat("\u0301", 99); got != want {
		t.Errorf("toC = %+q", got)
	}
	mixed := "a" + strings.Repeat("\u0301\u0323", 40) + "b\xff\u0301" + strings.Repeat("\u0301", 40)
	want := "ạ" + strings.Repeat("\u0323", 39) + strings.Repeat("\u0301", 40) + "b\xff" + strings.Repeat("\u0301", 41)
	if got := toC(mixed); got != want {
		t.Errorf("toC = %+q, want %+q", got, want)
	}
	if s := strings.Repeat("\u0301\u0327", 100_000); len(toC(s)) != len(s) {
		t.Error("200,000 marks changed in length")
	}
}

func TestSpansFollowNormalisation(t *testing.T) {
	s := "xe\u0301\u0301y\xffe\u0301"
	got, spans := toCSpans(s, []span{{0, 6}, {7, 11}})
	if got != "xé\u0301y\xffé" {
		t.Fatalf("%+q", got)
	}
	// The first span holds x and y's beginning, é with its second mark; the second starts at the invalid byte.
	want := []span{{0, 5}, {6, 9}}
	if len(spans) != 2 || spans[0] != want[0] || spans[1] != want[1] {
		t.Errorf("spans %v, want %v", spans, want)
	}
}
