package transcode

import (
	"bytes"
	"encoding/json"
	"strconv"
)

func (t *transcoder) int() (int64, error) {
	start := t.pos
	for t.pos < len(t.json) && (t.json[t.pos] == '-' || '0' <= t.json[t.pos] && t.json[t.pos] <= '9') {
		t.pos++
	}
	n, err := strconv.ParseInt(string(t.json[start:t.pos]), 10, 64)
	if err != nil || t.pos < len(t.json) && (t.json[t.pos] == '.' || t.json[t.pos]|0x20 == 'e') {
		return 0, ErrUnexpected
	}
	return n, nil
}

func (t *transcoder) space() {
	for t.pos < len(t.json) {
		switch t.json[t.pos] {
		case ' ', '\t', '\n', '\r':
			t.pos++
		default:
			return
		}
	}
}

// take moves past c and returns true, if c is the next byte.
func (t *transcoder) take(c byte) bool {
	if t.pos < len(t.json) && t.json[t.pos] == c {
		t.pos++
		return true
	}
	return false
}

func (t *transcoder) literal(text string) bool {
	if len(t.json)-t.pos >= len(text) && string(t.json[t.pos:t.pos+len(text)]) == text {
		t.pos += len(text)
		return true
	}
	return false
}

func (t *transcoder) null() bool {
	return t.pos < len(t.json) && t.json[t.pos] == 'n' && t.literal("null")
}

// key returns a member's key and moves to its value.
func (t *transcoder) key() ([]byte, error) {
	key, err := t.string()
	if err != nil {
		return nil, err
	}
	if t.space(); !t.take(':') {
		return nil, ErrUnexpected
	}
	t.space()
	return key, nil
}

// string returns the string that begins here and moves past it. The result is valid
// until the next call.
func (t *transcoder) string() ([]byte, error) {
	t.space()
	start := t.pos
	if !t.take('"') {
		return nil, ErrUnexpected
	}
	end := bytes.IndexByte(t.json[t.pos:], '"')
	if end < 0 {
		return nil, ErrUnexpected
	}
	text := t.json[t.pos : t.pos+end]
	if bytes.IndexByte(text, '\\') < 0 {
		t.pos += end + 1
		return text, nil
	}
	t.pos = start
	if err := t.skip(); err != nil {
		return nil, err
	}
	var decoded string
	if err := json.Unmarshal(t.json[start:t.pos], &decoded); err != nil {
		return nil, ErrUnexpected
	}
	t.text = append(t.text[:0], decoded...)
	return t.text, nil
}

// skip moves past the value that begins here. What it skips over is not checked.
func (t *transcoder) skip() error {
	s := NewScanner(t.json, t.pos)
	if s.SkipValue(); s.Pos == t.pos {
		return ErrUnexpected
	}
	t.pos = s.Pos
	return nil
}
