package cpu

import (
	"github.com/klauspost/cpuid/v2"

	"cotenant/internal/weights"
)

// amxUnit returns the tile unit, nil where processor or kernel lacks it.
func amxUnit() *tileUnit {
	if !cpuid.CPU.Supports(cpuid.AMXTILE, cpuid.AMXBF16) || !allowTiles() {
		return nil
	}
	u := &tileUnit{name: "amx", pack: packAMX, packTile: packTileAMX}
	u.product[weights.Q4_0] = productQ4_0AMX
	u.product[weights.Q4_1] = productQ4_1AMX
	u.product[weights.Q8_0] = productQ8_0AMX
	return u
}
