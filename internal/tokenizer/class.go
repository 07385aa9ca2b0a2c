package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// class is what the pre-tokenizers' regular expressions tell characters apart by.
type class uint8

const (
	other   class = iota
	letter        // \p{L}
	number        // \p{N}
	space         // \s (White_Space) but for the two below
	newline       // \r, \n
)

const classLimit = 0x30000

type classTable [classLimit]class

// unicode16 lists the letters and numbers that Unicode 16 has and 15 hadn't. Hugging Face's tokenizers 0.23 knows them
// (its engine for regular expressions does), Go's package unicode doesn't.
var unicode16 = map[class][][2]rune{
	letter: {
		{0x1c89, 0x1c8a}, {0xa7cb, 0xa7cd}, {0xa7da, 0xa7dc}, {0x105c0, 0x105f3}, {0x10d4a, 0x10d65}, {0x10d6f, 0x10d85},
		{0x10ec2, 0x10ec4}, {0x11380, 0x11389}, {0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x113b5}, {0x113b7, 0x113b7},
		{0x113d1, 0x113d1}, {0x113d3, 0x113d3}, {0x11bc0, 0x11be0}, {0x13460, 0x143fa}, {0x16100, 0x1611d}, {0x16d40, 0x16d6c},
		{0x18cff, 0x18cff}, {0x1e5d0, 0x1e5ed}, {0x1e5f0, 0x1e5f0}, {0x2ebf0, 0x2ee5d},
	},
	number: {
		{0x10d40, 0x10d49}, {0x116d0, 0x116e3}, {0x11bf0, 0x11bf9}, {0x16130, 0x16139}, {0x16d70, 0x16d79}, {0x1ccf0, 0x1ccf9},
		{0x1e5f1, 0x1e5fa},
	},
}

// classes holds the class of each character below its length, which takes in every character of planes 0 to 2; beyond
// lie only letters (plane 3), private use and unassigned characters.
var classes = sync.OnceValue(func() *classTable {
	table := new(classTable)
	fill := func(r *unicode.RangeTable, c class) {
		for _, r := range r.R16 {
			for i := uint32(r.Lo); i <= uint32(r.Hi); i += uint32(r.Stride) {
				table[i] = c
			}
		}
		for _, r := range r.R32 {
			for i := r.Lo; i <= r.Hi && i < uint32(len(table)); i += r.Stride {
				table[i] = c
			}
		}
	}
	fill(unicode.L, letter)
	fill(unicode.N, number)
	fill(unicode.White_Space, space)
	for c, ranges := range unicode16 {
		for _, r := range ranges {
			for i := r[0]; i <= r[1]; i++ {
				table[i] = c
			}
		}
	}
	table['\r'], table['\n'] = newline, newline
	return table
})

// classAt returns the class and length of the character at s[i:]. An invalid byte is a symbol of its own.
func classAt(table *classTable, s string, i int) (class, int) {
	if c := s[i]; c < utf8.RuneSelf {
		return table[c], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	switch {
	case r < rune(len(table)):
		return table[r], n
	case unicode.Is(unicode.L, r):
		return letter, n
	}
	return other, n
}
