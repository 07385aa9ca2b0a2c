package query

import (
	"encoding/binary"
	"encoding/hex"

	"cotenant/internal/observe"
)

// CUdevResource is 144 bytes in every driver from CUDA 12.4 to 13.5, 8-aligned from 13.1. The resource itself starts at 96;
// which of its fields a driver fills depends on the driver's version, not on a header.
const (
	resourceSize   = 144
	resourceOffset = 96

	typeSM              = 1
	typeWorkqueueConfig = 1000
	typeWorkqueue       = 10000
)

// resource is the memory that the driver fills, zeroed before each call.
type resource [resourceSize / 8]uint64

func (r *resource) bytes() []byte {
	b := make([]byte, 0, resourceSize)
	for _, w := range r {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	return b
}

func (r *resource) kind() uint32 { return binary.NativeEndian.Uint32(r.bytes()) }

func (r *resource) word(offset int) uint32 { return binary.NativeEndian.Uint32(r.bytes()[offset:]) }

func decodeSM(r *resource, driver int) SMResource {
	field := func(offset, floor int) observe.Value[uint32] {
		if driver < floor {
			return observe.None[uint32]("", 0, "not reported before CUDA "+FormatVersion(floor))
		}
		return observe.Got("", r.word(offset))
	}
	return SMResource{
		Count:          r.word(96),
		MinPartition:   field(100, FloorResourceLimits),
		Alignment:      field(104, FloorResourceLimits),
		Flags:          field(108, FloorWorkqueue),
		LocalityDomain: field(112, FloorLocalityDomain),
		Raw:            hex.EncodeToString(r.bytes()[resourceOffset:]),
	}
}

func decodeWorkqueueConfig(r *resource) WorkqueueConfig {
	return WorkqueueConfig{
		Device:           int32(r.word(96)),
		ConcurrencyLimit: r.word(100),
		SharingScope:     r.word(104),
		Raw:              hex.EncodeToString(r.bytes()[96:108]),
	}
}

func decodeWorkqueue(r *resource) Workqueue {
	return Workqueue{Raw: hex.EncodeToString(r.bytes()[96:136])}
}
