package recover

import (
	"encoding/binary"
	"encoding/hex"
	"io"
)

// Limits of an ELF file's notes.
const (
	maxHeaders = 256
	maxNotes   = 64 << 10
	maxBuildID = 256
)

// noteTable says where an ELF file has its segments or its sections, and where each of these says what it holds. All numbers are
// offsets in bytes (System V ABI, chapters 4 and 5; ELF-64 object file format).
type noteTable struct {
	offset, size, count             int // in the file's header
	least                           uint16
	note                            uint32 // the kind that holds notes
	kind, at, length, align, number int    // in an entry; number: bytes of at, length and align
}

var (
	wideTables = []noteTable{
		{offset: 32, size: 54, count: 56, least: 56, note: 4, kind: 0, at: 8, length: 32, align: 48, number: 8},  // PT_NOTE
		{offset: 40, size: 58, count: 60, least: 64, note: 7, kind: 4, at: 24, length: 32, align: 48, number: 8}, // SHT_NOTE
	}
	narrowTables = []noteTable{
		{offset: 28, size: 42, count: 44, least: 32, note: 4, kind: 0, at: 4, length: 16, align: 28, number: 4},
		{offset: 32, size: 46, count: 48, least: 40, note: 7, kind: 4, at: 16, length: 20, align: 32, number: 4},
	}
)

// buildIDs reads an ELF file's build ids from its notes: the one that the linker made (name "GNU", type 3) in hex, and Go's (name "Go",
// type 4) as it is. Go's linker puts the first into a section that no segment of notes covers. What isn't there, or no ELF file,
// is empty: a build id identifies, it decides nothing.
func buildIDs(r io.ReaderAt) (gnu, goID string) {
	head := make([]byte, 64)
	if n, err := r.ReadAt(head, 0); n < len(head) || err != nil || string(head[:4]) != "\x7fELF" {
		return "", ""
	}
	var order binary.ByteOrder = binary.LittleEndian
	if head[5] == 2 {
		order = binary.BigEndian
	}
	tables := narrowTables
	if head[4] == 2 {
		tables = wideTables
	}
	for _, t := range tables {
		t.walk(r, head, order, func(name string, kind uint32, content []byte) {
			switch {
			case name == "GNU\x00" && kind == 3 && gnu == "":
				gnu = hex.EncodeToString(content)
			case name == "Go\x00\x00" && kind == 4 && goID == "":
				goID = plain(string(content))
			}
		})
	}
	return gnu, goID
}

// walk calls note for each note of a table's entries.
func (t *noteTable) walk(r io.ReaderAt, head []byte, order binary.ByteOrder, note func(name string, kind uint32, content []byte)) {
	number := func(b []byte, at int) uint64 {
		if t.number == 8 {
			return order.Uint64(b[at:])
		}
		return uint64(order.Uint32(b[at:]))
	}
	offset, size, count := number(head, t.offset), order.Uint16(head[t.size:]), order.Uint16(head[t.count:])
	if size < t.least || offset >= 1<<62 {
		return
	}
	entry := make([]byte, t.least)
	for i := range min(count, maxHeaders) {
		if _, err := r.ReadAt(entry, int64(offset)+int64(i)*int64(size)); err != nil {
			return
		}
		at, length := number(entry, t.at), number(entry, t.length)
		if order.Uint32(entry[t.kind:]) != t.note || length > maxNotes || at >= 1<<62 {
			continue
		}
		notes := make([]byte, length)
		if _, err := r.ReadAt(notes, int64(at)); err == nil {
			walkNotes(notes, order, number(entry, t.align), note)
		}
	}
}

// walkNotes calls note for each note whose content is short enough for an id.
func walkNotes(b []byte, order binary.ByteOrder, align uint64, note func(name string, kind uint32, content []byte)) {
	if align != 8 {
		align = 4
	}
	padded := func(n uint64) uint64 { return (n + align - 1) &^ (align - 1) }
	for len(b) >= 12 {
		nameSize, size, kind := uint64(order.Uint32(b)), uint64(order.Uint32(b[4:])), order.Uint32(b[8:])
		start := padded(12 + nameSize)
		if end := start + size; end > uint64(len(b)) {
			return
		} else if size <= maxBuildID {
			note(string(b[12:12+nameSize]), kind, b[start:end])
		}
		next := start + padded(size)
		if next > uint64(len(b)) {
			return
		}
		b = b[next:]
	}
}
