package tokenizer

import (
	"bytes"
	"strings"
)

// maxLiteral bounds the length of an added token, and so what a text that nearly matches at each byte can cost.
const maxLiteral = 256

// matcher finds literals of added tokens: leftmost first, of those the longest. Its zero value finds nothing.
type matcher struct {
	nodes []trieNode
	first [256]bool // bytes that begin a literal
	only  int       // that byte, where there is just one; else -1
}

type trieNode struct {
	bytes   []byte // edges: bytes[i] leads to to[i]
	to      []int32
	id      int32 // of the literal that ends here, or -1
	control bool
}

func (m *matcher) empty() bool { return len(m.nodes) == 0 }

func (m *matcher) add(literal string, id int32, control bool) {
	if m.empty() {
		m.nodes = append(m.nodes, trieNode{id: -1})
		m.only = int(literal[0])
	}
	m.first[literal[0]] = true
	if m.only != int(literal[0]) {
		m.only = -1
	}
	at := int32(0)
	for i := range len(literal) {
		next := m.nodes[at].child(literal[i])
		if next < 0 {
			next = int32(len(m.nodes))
			m.nodes[at].bytes = append(m.nodes[at].bytes, literal[i])
			m.nodes[at].to = append(m.nodes[at].to, next)
			m.nodes = append(m.nodes, trieNode{id: -1})
		}
		at = next
	}
	m.nodes[at].id, m.nodes[at].control = id, control
}

func (n *trieNode) child(b byte) int32 {
	if i := bytes.IndexByte(n.bytes, b); i >= 0 {
		return n.to[i]
	}
	return -1
}

// split calls token for each literal in text and between for what lies between them, in order; start is where the
// stretch begins in text. A control token's literal counts only within one of the trusted spans, which are ascending
// and don't touch. Where the longest literal isn't allowed, a shorter one may be. It ends with false where one of the calls
// returns false.
func (m *matcher) split(text string, trusted []span, between func(s string, start int) bool, token func(id int32) bool) bool {
	done := 0
	for i := 0; i < len(text) && !m.empty(); {
		if m.only >= 0 {
			n := strings.IndexByte(text[i:], byte(m.only))
			if n < 0 {
				break
			}
			i += n
		} else if !m.first[text[i]] {
			i++
			continue
		}
		for len(trusted) > 0 && trusted[0].end <= i {
			trusted = trusted[1:]
		}
		limit := i // up to where a control token that begins here may reach
		if len(trusted) > 0 && trusted[0].start <= i {
			limit = trusted[0].end
		}
		end, id := m.longest(text, i, limit)
		if id < 0 {
			i++
			continue
		}
		if done < i && !between(text[done:i], done) || !token(id) {
			return false
		}
		i, done = end, end
	}
	return done == len(text) || between(text[done:], done)
}

// longest returns the end and id of the longest allowed literal at text[i:]; id is -1 where there is none.
func (m *matcher) longest(text string, i, limit int) (end int, id int32) {
	id = -1
	at := int32(0)
	for ; i < len(text); i++ {
		if at = m.nodes[at].child(text[i]); at < 0 {
			break
		}
		if n := &m.nodes[at]; n.id >= 0 && (!n.control || i < limit) {
			end, id = i+1, n.id
		}
	}
	return end, id
}
