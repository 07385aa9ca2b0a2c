package tokenizer

import (
	"fmt"
	"math"
	"strings"
)

// kind is what a token is for.
type kind uint8

const (
	normal      kind = iota // made by merging
	control                 // only in trusted text
	userDefined             // matched in every text
	unused                  // stands for nothing
)

// piece is one token as a file declares it.
type piece struct {
	text       string // normal: in byte-level characters; else the literal
	kind       kind
	present    bool
	normalized bool // the literal is looked for in normalised text
	inModel    bool // part of the model's vocabulary, whatever its kind
}

// source is a vocabulary in the form that both file formats are brought to.
type source struct {
	pieces         []piece
	left, right    []string // merges in order of rank, in byte-level characters
	pre            preTokenizer
	bos            int32
	eos            []int32 // declared; absent ones are -1
	addBOS, addEOS bool
}

// maxTokens bounds ids, and so what a file can make this package allocate beyond its own size.
const maxTokens = 1 << 22

// endLiterals are control tokens that end a turn or a text in the families that this package reads.
var endLiterals = []string{"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>"}

func (src *source) build() (*Tokenizer, error) {
	t := &Tokenizer{pre: src.pre.scan, usesC: src.pre.usesC, addBOS: src.addBOS, addEOS: src.addEOS, bos: src.bos}
	words, err := t.addPieces(src.pieces)
	if err != nil {
		return nil, err
	}
	t.bpe.longest = 1
	for word := range words {
		t.bpe.longest = max(t.bpe.longest, len(word))
	}
	for b := range t.bpe.byteIDs {
		t.bpe.byteIDs[b] = -1
		if id, ok := words[string([]byte{byte(b)})]; ok {
			t.bpe.byteIDs[b] = id
		}
	}
	if err := t.addMerges(src, words); err != nil {
		return nil, err
	}
	if src.pre.ignoreMerges {
		t.bpe.words = words
	}
	t.bpe.cache = newWordCache()
	return t, t.addEnds(src)
}

// addPieces fills the tables by id and the matchers. It returns the ids of normal tokens by the bytes that they stand
// for.
func (t *Tokenizer) addPieces(pieces []piece) (words map[string]int32, err error) {
	if len(pieces) == 0 {
		return nil, fmt.Errorf("the vocabulary is empty")
	}
	if len(pieces) > maxTokens {
		return nil, fmt.Errorf("the vocabulary has %d tokens, more than %d", len(pieces), maxTokens)
	}
	size := 0
	for _, p := range pieces {
		size += len(p.text)
	}
	if size > math.MaxUint32 {
		return nil, fmt.Errorf("the vocabulary has %d bytes of text", size)
	}
	t.blob = make([]byte, 0, size)
	t.offsets = make([]uint32, 1, len(pieces)+1)
	t.control = make([]bool, len(pieces))
	t.ids = map[string]int32{}
	words = make(map[string]int32, len(pieces))
	for i, p := range pieces {
		id := int32(i)
		if err := t.addPiece(id, p, words); err != nil {
			return nil, fmt.Errorf("token %d (%.40q): %w", id, p.text, err)
		}
		t.offsets = append(t.offsets, uint32(len(t.blob)))
	}
	for i, p := range pieces {
		if !p.inModel || p.kind != userDefined {
			continue
		}
		// Merges may make it too.
		if word, ok := appendBytes(nil, p.text); ok {
			if _, double := words[string(word)]; !double {
				words[string(word)] = int32(i)
			}
		}
	}
	return words, nil
}

func (t *Tokenizer) addPiece(id int32, p piece, words map[string]int32) error {
	if !p.present || p.kind == unused {
		return nil
	}
	if p.kind == normal {
		start := len(t.blob)
		var ok bool
		if t.blob, ok = appendBytes(t.blob, p.text); !ok {
			// No merge can make such a token; it stands for its own text, as in Hugging Face's decoder.
			t.blob = append(t.blob[:start], p.text...)
			return nil
		}
		word := string(t.blob[start:])
		if _, double := words[word]; double {
			return fmt.Errorf("the vocabulary has it twice")
		}
		words[word] = id
		return nil
	}
	if p.text == "" || len(p.text) > maxLiteral {
		return fmt.Errorf("an added token of %d bytes; 1 to %d are supported", len(p.text), maxLiteral)
	}
	if _, double := t.ids[p.text]; double {
		return fmt.Errorf("the vocabulary has it twice")
	}
	t.blob = append(t.blob, p.text...)
	t.ids[p.text] = id
	t.control[id] = p.kind == control
	if p.normalized && t.usesC {
		t.normed.add(toC(p.text), id, p.kind == control)
	} else if p.normalized {
		t.normed.add(p.text, id, p.kind == control)
	} else {
		t.raw.add(p.text, id, p.kind == control)
	}
	return nil
}

// addMerges resolves the merges. Where a pair is listed twice the later rank counts, as in Hugging Face's map.
func (t *Tokenizer) addMerges(src *source, words map[string]int32) error {
	t.bpe.merges = newPairTable(len(src.left))
	var buf []byte
	for rank := range src.left {
		left, right := src.left[rank], src.right[rank]
		var ok [2]bool
		buf, ok[0] = appendBytes(buf[:0], left)
		n := len(buf)
		buf, ok[1] = appendBytes(buf, right)
		a, okA := words[string(buf[:n])]
		b, okB := words[string(buf[n:])]
		id, okC := words[string(buf)]
		if !ok[0] || !ok[1] || !okA || !okB || !okC || n == 0 || n == len(buf) {
			return fmt.Errorf("merge %d (%.40q with %.40q): a part or the result isn't a normal token of the vocabulary", rank, left, right)
		}
		t.bpe.merges.set(a, b, int32(rank), id)
	}
	return nil
}

func (t *Tokenizer) addEnds(src *source) error {
	known := func(id int32) error {
		if id < -1 || int(id) >= t.VocabSize() {
			return fmt.Errorf("special token id %d lies outside the vocabulary of %d", id, t.VocabSize())
		}
		return nil
	}
	if err := known(src.bos); err != nil {
		return err
	}
	add := func(id int32) {
		for _, have := range t.eos {
			if have == id {
				return
			}
		}
		t.eos = append(t.eos, id)
	}
	for _, id := range src.eos {
		if err := known(id); err != nil {
			return err
		}
		if id >= 0 {
			add(id)
		}
	}
	for _, literal := range endLiterals {
		if id, ok := t.ids[literal]; ok && t.control[id] {
			add(id)
		}
	}
	if src.addBOS && t.bos < 0 {
		return fmt.Errorf("BOS is to be added, but none is declared")
	}
	if src.addEOS && len(t.eos) == 0 {
		return fmt.Errorf("EOS is to be added, but none is declared")
	}
	return nil
}

// splitMerge splits "left right" at its one space.
func splitMerge(m string) (left, right string, err error) {
	left, right, ok := strings.Cut(m, " ")
	if !ok || left == "" || right == "" || strings.Contains(right, " ") {
		return "", "", fmt.Errorf("merge %.40q isn't two parts with a space between", m)
	}
	return left, right, nil
}
