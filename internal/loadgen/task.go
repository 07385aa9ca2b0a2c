package loadgen

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// Kind is a kind of task.
type Kind string

// The kinds of the generated workload, and that of prompts from a file.
const (
	Repeat Kind = "repeat" // say a code word again
	Sum    Kind = "sum"    // add two numbers
	Lookup Kind = "lookup" // find a number in the base's list
	Order  Kind = "order"  // put letters in alphabetical order
	Custom Kind = "custom" // a prompt from a file
)

// Kinds lists the generated ones in the order in which contexts take turns.
var Kinds = []Kind{Repeat, Sum, Lookup, Order}

// Task is one question and what an oracle knows of it.
type Task struct {
	Context   int64
	Kind      Kind
	Messages  []Message
	Expect    string // the answer
	HasOracle bool   // false: Expect means nothing and Check must not be asked
	MaxTokens int64  // of the answer; 0: as the run has it
}

// Check reports whether answer is the expected one. White space around it, one pair of quotes and one final full stop
// are forgiven; letters in order may also be separated by commas or not at all, in either case.
func (t Task) Check(answer string) bool {
	if !t.HasOracle {
		return false
	}
	a := normalise(answer)
	if t.Kind == Order {
		return letters(a) == letters(t.Expect)
	}
	return a == normalise(t.Expect)
}

func normalise(s string) string {
	s = strings.TrimSpace(s)
	s = strings.TrimSuffix(s, ".")
	for _, q := range []string{`"`, `'`, "`"} {
		if len(s) >= 2 && strings.HasPrefix(s, q) && strings.HasSuffix(s, q) {
			s = s[1 : len(s)-1]
			break
		}
	}
	return strings.TrimSpace(s)
}

var unseparate = strings.NewReplacer(" ", "", ",", "")

func letters(s string) string { return unseparate.Replace(strings.ToLower(s)) }

// register is a base prompt and the list in it.
type register struct {
	text   string
	names  []string
	values []int
}

// Tokens of the base's prose and of one line of its list in SmolLM2's vocabulary, measured over seeds; other
// vocabularies of the usual size differ by some per cent.
const (
	proseTokens   = 111.0
	tokensPerLine = 6.64
)

const prose = `You keep this register and answer one question at a time. Answer with the value alone: no sentence, no unit, no punctuation.
There are four kinds of question.
A code word is repeated exactly as it is written.
A sum is answered with one whole number.
An entry is looked up in the list below and answered with its number.
Letters are put in alphabetical order with one space between them.
The list:
`

func newRegister(r *rand.Rand, tokens int) register {
	lines := min(int((float64(tokens)-proseTokens)/tokensPerLine), len(nouns))
	reg := register{names: make([]string, lines), values: make([]int, lines)}
	var b strings.Builder
	// The first words differ from register to register: unique bases share no prefix.
	fmt.Fprintf(&b, "Register %s.\n%s", codeWord(r), prose)
	for i, n := range r.Perm(len(nouns))[:lines] {
		reg.names[i], reg.values[i] = nouns[n], 100+r.IntN(900)
		fmt.Fprintf(&b, "%s %d\n", reg.names[i], reg.values[i])
	}
	b.WriteString("End of the list.")
	reg.text = b.String()
	return reg
}

func (g register) question(r *rand.Rand, k Kind) Task {
	var q, a string
	switch k {
	case Repeat:
		a = codeWord(r)
		q = "Repeat the code word " + a + "."
	case Sum:
		x, y := 10+r.IntN(490), 10+r.IntN(490)
		q = fmt.Sprintf("What is %d + %d?", x, y)
		a = strconv.Itoa(x + y)
	case Lookup:
		i := r.IntN(len(g.names))
		q = "Which number does the list give for " + g.names[i] + "?"
		a = strconv.Itoa(g.values[i])
	case Order:
		l := r.Perm(26)[:5]
		q = "Put in alphabetical order: " + spell(l)
		slices.Sort(l)
		a = spell(l)
	}
	return Task{Kind: k, Expect: a, HasOracle: true, Messages: []Message{{"system", g.text}, {"user", q}}}
}

func spell(l []int) string {
	s := make([]string, len(l))
	for i, n := range l {
		s[i] = string(rune('a' + n))
	}
	return strings.Join(s, " ")
}

// codeWord draws one of 85³·90 (about 55 million) pronounceable words: three syllables, a hyphen and two digits.
func codeWord(r *rand.Rand) string {
	const consonants, vowels = "bdfghjklmnprstvwz", "aeiou"
	b := make([]byte, 0, 9)
	for range 3 {
		b = append(b, consonants[r.IntN(len(consonants))], vowels[r.IntN(len(vowels))])
	}
	return fmt.Sprintf("%s-%d", b, 10+r.IntN(90))
}

// nouns are the names that a list draws from.
var nouns = strings.Fields(`
acorn anchor apple arrow badge banner barrel basin basket beacon bell bench berry blade blanket board bottle bowl branch
bread brick bridge brush bucket button cabin cable camera candle canoe carpet cart castle cedar chain chair chalk cherry
clock cloth cloud coat coin copper coral corner cotton crane crown curtain desk diamond door dragon drum eagle engine
falcon feather fence field flag flame flower forest fork fountain garden gate glass glove grain grape hammer harbor
hat hazel helmet hill honey horn horse island ivory jacket jar jewel kettle key kite ladder lake lamp lantern leaf
lemon letter lily lion lock magnet maple marble market meadow medal mill mirror moon mountain needle nest oak oar
ocean olive onion orange orchard otter oven owl paddle paint palace paper pearl pebble pencil pepper piano pillow pine
planet plate plum pocket pond pony pump quartz quill rabbit radio rail raven ribbon ring river road robin rocket roof
rope rose saddle sail salmon salt sand scarf shell shield ship shore silver spoon spring star stone stove sugar sword
table temple tent thread ticket tiger tile timber torch tower train tray tulip tunnel turtle valley vase violin wagon
wall walnut water wheel whistle willow window wolf wool yard zebra`)
