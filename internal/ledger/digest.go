package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"math/bits"

	"golang.org/x/mod/sumdb/tlog"
)

// A Tree is an RFC 6962 Merkle tree that grows by one record at a time and keeps only its right edge: at most one hash for
// each bit of its size. Its root is that of tlog's tree over the same records, so tlog's proofs hold for it.
// The zero Tree is empty.
type Tree struct {
	n    int64
	edge []tlog.Hash // roots of the perfect subtrees that n's binary digits stand for, the largest first
}

// Add appends a record.
func (t *Tree) Add(record []byte) {
	h := tlog.RecordHash(record)
	// Each trailing 1 of n is a perfect subtree as large as the one that h has become.
	for range bits.TrailingZeros64(^uint64(t.n)) {
		last := len(t.edge) - 1
		h = tlog.NodeHash(t.edge[last], h)
		t.edge = t.edge[:last]
	}
	t.edge = append(t.edge, h)
	t.n++
}

// Root returns the root over what was added so far.
func (t *Tree) Root() tlog.Hash {
	if t.n == 0 {
		return sha256.Sum256(nil) // RFC 6962, 2.1
	}
	h := t.edge[len(t.edge)-1]
	for i := len(t.edge) - 2; i >= 0; i-- {
		h = tlog.NodeHash(t.edge[i], h)
	}
	return h
}

// digest computes a File's entry from its lines.
type digest struct {
	sum   hash.Hash
	tree  Tree
	bytes int64
	lines int64
}

func newDigest() *digest { return &digest{sum: sha256.New()} }

// line takes a line without its line feed.
func (d *digest) line(b []byte) {
	d.sum.Write(b)
	d.sum.Write([]byte{'\n'})
	d.tree.Add(b)
	d.bytes += int64(len(b)) + 1
	d.lines++
}

// document takes a whole document: one leaf and no line.
func (d *digest) document(b []byte) {
	d.sum.Write(b)
	d.tree.Add(b)
	d.bytes += int64(len(b))
}

func (d *digest) file(name string) File {
	root := d.tree.Root()
	return File{Name: name, Bytes: d.bytes, Lines: d.lines, SHA256: hex.EncodeToString(d.sum.Sum(nil)), MerkleRoot: hex.EncodeToString(root[:])}
}

// FilesRoot is the Merkle root over the canonical forms of files, in their order.
func FilesRoot(files []File) (string, error) {
	var t Tree
	for _, f := range files {
		b, err := Marshal(f)
		if err != nil {
			return "", err
		}
		t.Add(b)
	}
	root := t.Root()
	return hex.EncodeToString(root[:]), nil
}
