package server

import (
	"bytes"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"byre/watch"
)

// The encodings of values. PostgreSQL's text holds neither U+0000 nor what is not UTF-8, and protobuf of Kubernetes
// has both.
const (
	// encodingText is the value itself.
	encodingText = "etcd/text"
	// encodingBytes has a character for each byte: itself, or U+0100 for 0. Text inside the value stays legible.
	encodingBytes = "etcd/bytes"
	// encodingBase64 is shorter for a value of random bytes.
	encodingBase64 = "etcd/base64"
	// encodingEmpty is that of an empty value, which the store can't hold.
	encodingEmpty = "etcd/empty"
)

// encodeValue encodes a value as a text that both databases hold. Text is not copied.
func encodeValue(value []byte) (encoding string, text []byte) {
	if len(value) == 0 {
		return encodingEmpty, []byte(`""`)
	}
	if bytes.IndexByte(value, 0) < 0 && utf8.Valid(value) {
		return encodingText, value
	}
	wide := 0
	for _, c := range value {
		if c == 0 || c >= utf8.RuneSelf {
			wide++
		}
	}
	if len(value)+wide > base64.StdEncoding.EncodedLen(len(value)) {
		return encodingBase64, base64.StdEncoding.AppendEncode(nil, value)
	}
	text = make([]byte, 0, len(value)+wide)
	for _, c := range value {
		switch {
		case c == 0:
			text = utf8.AppendRune(text, 0x100)
		case c < utf8.RuneSelf:
			text = append(text, c)
		default:
			text = utf8.AppendRune(text, rune(c))
		}
	}
	return encodingBytes, text
}

var errEncoding = errors.New("the value is in no encoding of this program")

// ValueOf returns the value of the key of etcd whose record has an encoding and a text: the reverse of encodeValue.
func ValueOf(encoding string, text []byte) ([]byte, error) {
	switch encoding {
	case encodingEmpty:
		return nil, nil
	case encodingText:
		return text, nil
	case encodingBase64:
		value := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
		n, err := base64.StdEncoding.Decode(value, text)
		return value[:n], err
	case encodingBytes:
		value := make([]byte, 0, len(text))
		for i := 0; i < len(text); i++ {
			c := text[i]
			if c >= utf8.RuneSelf && i+1 < len(text) {
				i++
				c = c<<6 | text[i]&0x3f
			}
			value = append(value, c)
		}
		return value, nil
	}
	return nil, errEncoding
}

// identity returns the UID of a record: the version of the key and, if it has one, its lease.
func identity(version, lease int64) string {
	uid := strconv.FormatInt(version, 10)
	if lease != 0 {
		uid += "." + strconv.FormatUint(uint64(lease), 16)
	}
	return uid
}

// parseIdentity is the reverse of identity.
func parseIdentity(uid string) (version, lease int64) {
	first, second, _ := strings.Cut(uid, ".")
	version, _ = strconv.ParseInt(first, 10, 64)
	id, _ := strconv.ParseUint(second, 16, 64)
	return version, int64(id)
}

// leaseMark returns the expiry of the records of keys with a lease: a time after the year 3000 that stands for the
// lease, so that the store's index by expiry finds its keys. The store deletes none of them, because no clock gets
// there. Two leases may have the same mark: the UIDs of the records tell them apart.
func leaseMark(lease int64) time.Time {
	if lease == 0 {
		return time.Time{}
	}
	return firstMark.Add(time.Duration(uint64(lease)%(1<<53)) * time.Microsecond)
}

var (
	firstMark = time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)
	lastMark  = time.Date(3300, 1, 1, 0, 0, 0, 0, time.UTC)
)

// keyValue returns what etcd answers of a record. Without a value it has no lease either, as in etcd 3.7.
func keyValue(e *watch.Entry, keysOnly bool) (*mvccpb.KeyValue, error) {
	version, lease := parseIdentity(e.UID)
	kv := &mvccpb.KeyValue{
		Key: keyOf(e.Key), CreateRevision: e.Created, ModRevision: e.Revision, Version: version,
	}
	if keysOnly {
		return kv, nil
	}
	kv.Lease = lease
	var err error
	kv.Value, err = ValueOf(e.Encoding, e.Value())
	return kv, err
}
