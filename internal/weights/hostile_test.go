package weights_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
)

// hostile is a file that must be refused, and a part of the reason that must be given; "" means that it must be read.
type hostile struct {
	name string
	data []byte
	want string
}

// raw builds files byte by byte, right or wrong.
type raw []byte

func (r raw) u32(v uint32) raw { return binary.LittleEndian.AppendUint32(r, v) }
func (r raw) u64(v uint64) raw { return binary.LittleEndian.AppendUint64(r, v) }
func (r raw) str(s string) raw { return append(r.u64(uint64(len(s))), s...) }
func (r raw) zeros(n int) raw  { return append(r, make([]byte, n)...) }
func (r raw) pad(n int) raw    { return r.zeros((n - len(r)%n) % n) }

// head begins a GGUF v3 file.
func head(tensors, pairs uint64) raw { return raw("GGUF").u32(3).u64(tensors).u64(pairs) }

// info appends a tensor description, dimensions innermost first.
func (r raw) info(name string, kind uint32, offset uint64, ne ...uint64) raw {
	r = r.str(name).u32(uint32(len(ne)))
	for _, d := range ne {
		r = r.u64(d)
	}
	return r.u32(kind).u64(offset)
}

// GGUF's numbers of value types and tensor types.
const (
	tUint8, tUint16, tUint32, tInt32, tFloat32, tBool, tString, tArray = 0, 2, 4, 5, 6, 7, 8, 9
	gF32, gF16, gQ4_0, gIQ4XS, gQ4K                                    = 0, 1, 2, 23, 12
)

// aligned is a file of two F32 vectors of 8 whose general.alignment has this type and value.
func aligned(kind, value uint32, second uint64) raw {
	r := head(2, 1).str("general.alignment").u32(kind).u32(value)
	return r.info("a", gF32, 0, 8).info("b", gF32, second, 8)
}

// single is a file of one tensor, followed by zero bytes.
func single(kind uint32, offset uint64, ne ...uint64) raw {
	return head(1, 0).info("x", kind, offset, ne...).pad(32).zeros(64)
}

// pair is a file of one metadata pair whose value is what follows.
func pair(key string) raw { return head(0, 1).str(key) }

func hostileGGUF() []hostile {
	const huge = 1 << 63
	cases := []hostile{
		{"alignment-0", aligned(tUint32, 0, 32).pad(32).zeros(64), "general.alignment is 0"},
		{"alignment-3", aligned(tUint32, 3, 33).pad(3).zeros(66), "general.alignment is 3"},
		{"alignment-128Ki", aligned(tUint32, 128<<10, 128<<10), "general.alignment is 131072"},
		{"alignment-int32", aligned(tInt32, 32, 32).pad(32).zeros(64), `"general.alignment" is INT32, want UINT32`},
		{"alignment-64", aligned(tUint32, 64, 64).pad(64).zeros(96), ""},
		{"alignment-1", aligned(tUint32, 1, 33).zeros(65), ""},
		{"offset-misaligned", aligned(tUint32, 64, 32).pad(64).zeros(96), "not a multiple of the alignment 64"},
		{"padding-cut", aligned(tUint32, 64<<10, 64<<10), "before the tensors' data"},

		{"kv-key-length", head(0, 1).u64(huge).zeros(8), "a string of 9223372036854775808 bytes"},
		{"kv-string-length", pair("k").u32(tString).u64(huge), "a string of 9223372036854775808 bytes"},
		{"kv-string-past-end", pair("k").u32(tString).u64(10).zeros(9), "file ends at byte"},
		{"kv-array-length", pair("").u32(tArray).u32(tUint8).u64(huge), "an array claims 9223372036854775808 elements"},
		{"kv-array-of-strings-length", pair("k").u32(tArray).u32(tString).u64(huge).zeros(64), "an array claims"},
		{"kv-array-multiply-wraps", pair("k").u32(tArray).u32(tUint32).u64(1 << 62).zeros(64), "an array claims"},
		{"kv-array-inner-length", pair("k").u32(tArray).u32(tString).u64(2).str("ok").u64(huge), "a string of"},
		{"kv-array-inner-past-end", pair("k").u32(tArray).u32(tString).u64(2).str("ok").u64(1), "file ends at byte"},
		{"kv-array-of-arrays", pair("k").u32(tArray).u32(tArray).u64(1).u32(tUint8).u64(0), "arrays of arrays"},
		{"kv-array-of-unknown", pair("k").u32(tArray).u32(13).u64(0), "unknown types"},
		{"kv-type-unknown", pair("k").u32(13).zeros(8), "value type 13 is unknown"},
		{"kv-type-max", pair("k").u32(math.MaxUint32).zeros(8), "value type 4294967295 is unknown"},
		{"kv-bool-2", append(pair("k").u32(tBool), 2), "a BOOL holds 2"},
		{"kv-twice", head(0, 2).str("k").u32(tUint32).u32(1).str("k").u32(tUint32).u32(2), `key "k" is there twice`},
		{"kv-count", head(0, huge), "claims 9223372036854775808 metadata pairs"},
		{"kv-count-all-ones", head(0, math.MaxUint64), "metadata pairs"},
		{"kv-count-one-too-many", head(0, 2).str("k").u32(tUint32).u32(1).zeros(8), "metadata pairs"},
		{"tensor-count", head(huge, 0), "claims 9223372036854775808 tensors"},
		{"tensor-count-all-ones", head(math.MaxUint64, 0).zeros(64), "claims 18446744073709551615 tensors"},

		{"version-1", raw("GGUF").u32(1).u32(0).u32(0).u64(0), "GGUF v1"},
		{"version-4", raw("GGUF").u32(4).u64(0).u64(0), "GGUF v4; versions 2 and 3"},
		{"version-0", raw("GGUF").u32(0).u64(0).u64(0), "GGUF v0"},
		{"big-endian", raw("GGUF\x00\x00\x00\x03").u64(0).u64(0), "big-endian"},
		{"version-2", append(append(raw("GGUF").u32(2).u64(1).u64(0).info("x", gF32, 0, 2).pad(32), 1, 2, 3, 4), 5, 6, 7, 8), ""},
		{"magic-only", raw("GGUF"), "file ends at byte"},
		{"empty", nil, "neither GGUF nor safetensors"},
		{"split", append(pair("split.count").u32(tUint16), 3, 0), "one of 3 parts of a split GGUF"},
		{"vocabulary-only", pair("k").u32(tUint32).u32(7), ""},

		{"dims-int64-max", single(gF32, 0, math.MaxInt64, 2, 1, 1), "more elements than can be addressed"},
		{"dims-wrap-to-16-below", single(gF32, 0, 4, 1073741823, 1073741825, 1), "more elements than can be addressed"},
		{"dims-2-42", single(gF32, 0, 1<<22, 1<<42+1), "more elements than can be addressed"},
		{"dims-beyond-file", single(gF32, 0, 17), "beyond the 64 bytes of data"},
		{"dims-above-int64", single(gF32, 0, math.MaxUint64), "a dimension of 18446744073709551615"},
		{"dims-zero", single(gF32, 0, 4, 0), "a dimension of 0"},
		{"dims-none", single(gF32, 0), "has 0 dimensions"},
		{"dims-5", single(gF32, 0, 1, 1, 1, 1, 1), "has 5 dimensions"},
		{"dims-count-2-31", head(1, 0).str("x").u32(1 << 31).zeros(64), "has 2147483648 dimensions"},
		{"row-not-whole-blocks", single(gQ4_0, 0, 16, 2), "rows of 16 elements aren't whole blocks of 32"},
		{"row-not-whole-superblocks", single(gQ4K, 0, 128, 2), "rows of 128 elements aren't whole blocks of 256"},
		{"offset-beyond", single(gF32, 64, 1), "beyond the 64 bytes of data"},
		{"offset-wraps", single(gF32, math.MaxUint64-31, 8), "beyond the 64 bytes of data"},
		{"overlap", head(2, 0).info("a", gF32, 0, 16).info("b", gF32, 32, 8).pad(32).zeros(64), `tensors "a" and "b" overlap`},
		{"overlap-whole", head(2, 0).info("a", gF32, 0, 8).info("b", gF32, 0, 8).pad(32).zeros(64), "overlap"},
		{"tensor-twice", head(2, 0).info("a", gF32, 0, 8).info("a", gF32, 32, 8).pad(32).zeros(64), `tensor "a" is there twice`},
		{"tensor-name-long", head(1, 0).info(strings.Repeat("n", 1025), gF32, 0, 1).pad(32).zeros(64), "a string of 1025 bytes"},
		{"type-iq4-xs", single(gIQ4XS, 0, 256), "type IQ4_XS, which isn't read"},
		{"type-removed", single(4, 0, 32), "type number 4"},
		{"type-max", single(math.MaxUint32, 0, 32), "type number 4294967295"},
	}
	whole := []byte(validGGUF())
	for n := range whole {
		if n%7 == 3 || n < 12 {
			cases = append(cases, hostile{fmt.Sprintf("cut-at-%d", n), whole[:n], cutReason(n)})
		}
	}
	return cases
}

func cutReason(n int) string {
	if n < 4 {
		return "neither GGUF nor safetensors"
	}
	return " byte" // whatever it is that is cut, the reason says where or how much there is
}

// validGGUF has every kind of value and two tensors.
func validGGUF() raw {
	r := head(2, 7)
	r = r.str("general.architecture").u32(tString).str("llama")
	r = append(r.str("flag").u32(tBool), 1)
	r = r.str("n").u32(tUint32).u32(7)
	r = r.str("eps").u32(tFloat32).u32(math.Float32bits(1e-5))
	r = r.str("tokenizer.ggml.tokens").u32(tArray).u32(tString).u64(3).str("a").str("").str("Ġb")
	r = r.str("tokenizer.ggml.scores").u32(tArray).u32(tFloat32).u64(3).u32(0).u32(0).u32(0)
	r = r.str("tokenizer.ggml.token_type").u32(tArray).u32(tInt32).u64(3).u32(1).u32(1).u32(3)
	r = r.info("token_embd.weight", gF16, 0, 4, 3).info("output_norm.weight", gF32, 32, 4)
	r = r.pad(32)
	for i := range 48 {
		r = append(r, byte(i))
	}
	return r
}

// st is a safetensors file of this header and so many bytes of data.
func st(header string, data int) raw {
	return append(raw{}.u64(uint64(len(header))), header...).zeros(data)
}

const validHeader = `{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},` +
	`"b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]}}  `

func hostileSafetensors() []hostile {
	entry := func(s string) raw { return st(`{"a":`+s+`}`, 16) }
	shaped := func(shape string) raw { return entry(`{"dtype":"F32","shape":` + shape + `,"data_offsets":[0,16]}`) }
	placed := func(offsets string) raw { return entry(`{"dtype":"F32","shape":[4],"data_offsets":` + offsets + `}`) }
	typed := func(dtype string) raw { return entry(`{"dtype":"` + dtype + `","shape":[16],"data_offsets":[0,16]}`) }
	a := `"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`
	cases := []hostile{
		{"valid", st(validHeader, 22), ""},
		{"empty-object", st(`{}`, 0), ""},
		{"scalar", st(`{"a":{"dtype":"F16","shape":[],"data_offsets":[0,2]}}`, 2), ""},
		{"zero-dimension", st(`{"a":{"dtype":"F16","shape":[2147483647,0,9],"data_offsets":[0,0]},"b":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}`, 2), ""},
		{"unaligned-data", st(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`+" ", 8), ""},
		{"white-space", st("{\n\t\"a\" : {\r\n \"dtype\" : \"F32\" , \"shape\" : [ 2 ] , \"data_offsets\" : [ 0 , 8 ] } }\n", 8), ""},
		{"escaped-name", st(`{"\u0061\"\n":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8), ""},
		{"any-member-order", st(`{"a":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"}}`, 8), ""},

		{"header-2-60", append(raw{}.u64(1<<60), '{', '}'), "header of 1152921504606846976 bytes"},
		{"header-all-ones", append(raw{}.u64(math.MaxUint64), '{', '}'), "header of 18446744073709551615 bytes"},
		{"header-one-too-long", append(raw{}.u64(3), '{', '}'), "header of 3 bytes"},
		{"header-empty", append(raw{}.u64(0), '{', '}'), "wants '{', has the end"},
		{"length-only", raw{}.u64(8), "neither"},
		{"first-byte-space", st(` {}`, 0), "neither GGUF nor safetensors"},
		{"first-byte-bracket", st(`[]`, 0), "neither GGUF nor safetensors"},
		{"byte-order-mark", st("\ufeff{}", 0), "neither GGUF nor safetensors"},
		{"nested", st(`{"a":`+strings.Repeat("[", 2000), 0), "wants '{', has '['"},
		{"nested-objects", st(strings.Repeat(`{"a":`, 500), 0), `member "a" is unknown`},
		{"nested-metadata", st(`{"__metadata__":{"a":{"b":{}}}}`, 0), `wants '"', has '{'`},
		{"nested-shape", shaped("[[2,2]]"), `before '['`},

		{"overlap", st(`{`+a+`,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}`, 12), `"b" begins at offset 4, the one before ends at 8`},
		{"same-place", st(`{`+a+`,"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8), `begins at offset 0, the one before ends at 8`},
		{"gap", st(`{`+a+`,"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}}`, 20), `"b" begins at offset 12`},
		{"gap-at-start", st(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}`, 12), `begins at offset 4`},
		{"trailing-data", st(`{`+a+`}`, 9), "the tensors end at offset 8, the data at 9"},
		{"data-cut", st(`{`+a+`}`, 7), "is the file complete?"},
		{"end-before-begin", placed("[16,0]"), "has data_offsets [16 0]"},
		{"size-mismatch", placed("[0,12]"), "have 16 bytes"},
		{"offsets-3", placed("[0,8,16]"), "more than 2 numbers"},
		{"offsets-1", placed("[0]"), "two data_offsets"},
		{"offsets-negative", placed("[-1,15]"), "wants an integer"},
		{"offsets-2-64", placed("[0,18446744073709551616]"), "more than can be addressed"},
		{"offsets-2-63", placed("[0,9223372036854775808]"), "more than can be addressed"},
		{"offsets-fraction", placed("[0,16.0]"), "has '.'"},
		{"offsets-exponent", placed("[0,1e1]"), "has 'e'"},
		{"offsets-leading-zero", placed("[00,16]"), "wants an integer"},
		{"offsets-text", placed(`["0",16]`), "wants an integer"},
		{"offsets-null", placed("null"), "wants '[', has 'n'"},
		{"shape-overflow", shaped("[4294967296,4294967296,4294967296]"), "than can be addressed"},
		{"shape-wraps-to-16", shaped("[4611686018427387905,1,4]"), "than can be addressed"},
		{"shape-rank-17", shaped("[" + strings.Repeat("1,", 16) + "4]"), "more than 16 numbers"},
		{"dtype-f8", typed("F8_E4M3"), `dtype "F8_E4M3", which isn't read`},
		{"dtype-f4", typed("F4"), "isn't read"},
		{"dtype-i8", typed("I8"), "isn't read"},
		{"dtype-q4-0", typed("Q4_0"), "isn't read"},
		{"dtype-empty", typed(""), "isn't read"},
		{"dtype-number", entry(`{"dtype":1,"shape":[4],"data_offsets":[0,16]}`), `wants '"', has '1'`},

		{"tensor-twice", st(`{`+a+`,"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}`, 16), `tensor "a" is there twice`},
		{"tensor-twice-escaped", st(`{`+a+`,"\u0061":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}`, 16), `tensor "a" is there twice`},
		{"metadata-twice", st(`{"__metadata__":{},"__metadata__":{}}`, 0), "__metadata__ is there twice"},
		{"metadata-key-twice", st(`{"__metadata__":{"a":"1","a":"2"}}`, 0), `key "a" is there twice`},
		{"metadata-number", st(`{"__metadata__":{"a":1}}`, 0), `__metadata__ key "a"`},
		{"member-twice", entry(`{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}`), `"dtype" is there twice`},
		{"member-unknown", entry(`{"dtype":"F32","shape":[4],"data_offsets":[0,16],"x":1}`), `member "x" is unknown`},
		{"member-missing", entry(`{"dtype":"F32","shape":[4]}`), "wants dtype, shape and two data_offsets"},
		{"name-long", st(`{"`+strings.Repeat("n", 1025)+`":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}`, 0), "a string of 1025 bytes"},
		{"name-not-utf8", st("{\"\xff\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0), "isn't UTF-8"},
		{"name-control", st("{\"a\nb\":{}}", 0), "control character 0xa"},
		{"name-escape", st(`{"\x61":{}}`, 0), "a string: invalid character"},
		{"name-open", st(`{"abc`, 0), "ends inside a string"},
		{"name-open-escape", st(`{"abc\`, 0), "ends inside a string"},
		{"comma-last", st(`{`+a+`,}`, 8), `wants '"', has '}'`},
		{"comma-none", st(`{`+a+`"b":{}}`, 8), `wants ',', has '"'`},
		{"brace-none", st(`{`+a, 8), "wants ',', has the end"},
		{"text-after", st(`{}{}`, 0), "'{' after the object"},
		{"nul-after", st("{}\x00", 0), `'\x00' after the object`},
		{"nul-before", st("{\x00}", 0), `has '\x00'`},
	}
	whole := []byte(st(validHeader, 22))
	for n := range whole {
		if n%11 == 5 || n < 10 {
			want := "the file goes on for"
			if n < 9 {
				want = "neither GGUF nor safetensors"
			} else if n >= len(whole)-22 {
				want = "is the file complete?"
			}
			cases = append(cases, hostile{fmt.Sprintf("cut-at-%d", n), whole[:n], want})
		}
	}
	return cases
}

// hostileOther holds what is neither format.
func hostileOther() []hostile {
	return []hostile{
		{"pickle", []byte("PK\x03\x04............"), "pickled PyTorch"},
		{"pickle-old", []byte("\x80\x02}q\x00........."), "pickled PyTorch"},
		{"lfs", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "Git LFS pointer"},
		{"text", []byte("<!DOCTYPE html><title>Not found</title>"), "neither GGUF nor safetensors"},
		{"zeros", bytes.Repeat([]byte{0}, 4096), "neither GGUF nor safetensors"},
	}
}
