package history

import "bytes"

// The texts that these functions split are valid JSON values, without space around them.

// fieldsOf returns the texts of an object's fields.
func fieldsOf(object []byte) map[string][]byte {
	all := make(map[string][]byte)
	for rest := afterSpace(object[1:]); rest[0] != '}'; rest = afterComma(rest) {
		var name []byte
		name, rest = cutValue(rest)
		rest = afterSpace(rest)[1:] // a colon
		text := name[1 : len(name)-1]
		if bytes.IndexByte(text, '\\') >= 0 {
			text = []byte(decode(name).(string))
		}
		all[string(text)], rest = cutValue(afterSpace(rest))
	}
	return all
}

// elementsOf returns the texts of a list's elements.
func elementsOf(list []byte) (all [][]byte) {
	for rest := afterSpace(list[1:]); rest[0] != ']'; rest = afterComma(rest) {
		var element []byte
		element, rest = cutValue(rest)
		all = append(all, element)
	}
	return all
}

func afterSpace(text []byte) []byte { return bytes.TrimLeft(text, " \t\r\n") }

// afterComma returns the text after a comma, if there is one.
func afterComma(text []byte) []byte {
	text = afterSpace(text)
	if text[0] == ',' {
		return afterSpace(text[1:])
	}
	return text
}

// cutValue returns the value with which a text begins, and the rest.
func cutValue(text []byte) (value, rest []byte) {
	end, depth := 0, 0
	for {
		switch text[end] {
		case '"':
			end += stringLength(text[end:])
		case '{', '[':
			depth++
			end++
		case '}', ']':
			depth--
			end++
		default: // a number, a literal, or what separates values
			end++
			for depth == 0 && end < len(text) && bytes.IndexByte([]byte(",]} \t\r\n"), text[end]) < 0 {
				end++
			}
		}
		if depth == 0 {
			return text[:end], text[end:]
		}
	}
}

// stringLength returns the length of the string with which a text begins.
func stringLength(text []byte) int {
	for end := 1; ; end++ {
		end += bytes.IndexByte(text[end:], '"')
		if escapes := end - len(bytes.TrimRight(text[:end], `\`)); escapes%2 == 0 {
			return end + 1
		}
	}
}
