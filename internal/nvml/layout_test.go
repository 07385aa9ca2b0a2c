package nvml

import (
	"reflect"
	"strings"
	"testing"

	"cotenant/internal/gputest"
)

// TestLayouts compares Go's structs with the C compiler's, field by field.
func TestLayouts(t *testing.T) {
	c := gputest.Layout(t)
	structs := map[string]reflect.Type{
		"pciInfo": reflect.TypeFor[pciInfo](), "memory": reflect.TypeFor[memory](), "memoryV2": reflect.TypeFor[memoryV2](),
		"processInfoV1": reflect.TypeFor[processInfoV1](), "processInfo": reflect.TypeFor[processInfo](),
		"deviceAttributes": reflect.TypeFor[deviceAttributes](), "profileInfoV1": reflect.TypeFor[profileInfoV1](),
		"profileInfoV2": reflect.TypeFor[profileInfoV2](), "profileInfoV3": reflect.TypeFor[profileInfoV3](),
		"placement": reflect.TypeFor[placement](), "addressingMode": reflect.TypeFor[addressingMode](), "repairStatus": reflect.TypeFor[repairStatus](),
		"temperature": reflect.TypeFor[temperature](), "utilization": reflect.TypeFor[utilization](), "fabricInfo": reflect.TypeFor[fabricInfo](),
		"confCompute": reflect.TypeFor[confCompute](),
	}
	sizes := 0
	for name, want := range c {
		typ, field, isField := strings.Cut(name, ".")
		s, ok := structs[typ]
		if !ok {
			t.Errorf("no Go struct for %s", typ)
			continue
		}
		if !isField {
			sizes++
			if int(s.Size()) != want {
				t.Errorf("%s: %d bytes in Go, %d in C", typ, s.Size(), want)
			}
			continue
		}
		f, ok := s.FieldByNameFunc(func(n string) bool { return strings.EqualFold(n, field) })
		if !ok {
			t.Errorf("%s: no field %s in Go", typ, field)
		} else if int(f.Offset) != want {
			t.Errorf("%s: at %d in Go, at %d in C", name, f.Offset, want)
		}
	}
	if sizes != len(structs) || len(c) < 50 {
		t.Errorf("C printed %d sizes and %d lines for %d structs", sizes, len(c), len(structs))
	}
	// Versions that nvml.h's macros give.
	if v := structVersion(40, 2); v != 0x02000028 {
		t.Errorf("memory: %#x", v)
	}
	if v := structVersion(reflect.TypeFor[fabricInfo]().Size(), 2); v != 0x02000024 {
		t.Errorf("fabric: %#x", v)
	}
}
