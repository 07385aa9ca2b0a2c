package tokenizer

// GPT-2's vocabularies write each byte as one printable character: those that print in Latin-1 as themselves, all
// others, in order, as the characters from U+0100 (encoder.py of openai/gpt-2, bytes_to_unicode).
var charOfByte, byteOfChar = byteLevel()

// byteChars is one more than the largest character that stands for a byte.
const byteChars = 0x144

func byteLevel() (chars [256]rune, bytes [byteChars]int16) {
	for i := range bytes {
		bytes[i] = -1
	}
	next := rune(0x100)
	for b := range chars {
		c := rune(b)
		if b <= ' ' || 0x7f <= b && b <= 0xa0 || b == 0xad {
			c = next
			next++
		}
		chars[b] = c
		bytes[c] = int16(b)
	}
	return chars, bytes
}

// appendBytes appends the bytes that token's characters stand for; false where one stands for none.
func appendBytes(dst []byte, token string) ([]byte, bool) {
	for _, c := range token {
		if c >= byteChars || byteOfChar[c] < 0 {
			return dst, false
		}
		dst = append(dst, byte(byteOfChar[c]))
	}
	return dst, true
}
