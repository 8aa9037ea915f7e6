package documents

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
)

// Compress returns data in gzip, the form in which a document is kept and sent to clients
// that accept gzip.
func Compress(data []byte) ([]byte, error) {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return bytes.Clone(buf.Bytes()), nil
}

// Decompress is the inverse of Compress.
func Decompress(data []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	// gzip ends with the size (RFC 1952). A buffer that grows would take twice the memory.
	var buf bytes.Buffer
	buf.Grow(int(binary.LittleEndian.Uint32(data[len(data)-4:])) + bytes.MinRead)
	if _, err := buf.ReadFrom(r); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
