package storage

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// A stored value is always JSON text. A value that is not encrypted is the object
// itself. An encrypted value is a JSON string: the readable prefix that upstream puts
// before the ciphertext ("k8s:enc:aescbc:v1:key1:"), followed by the ciphertext in
// base64. If a transformer writes no such prefix, the string begins with rawPrefix.
const (
	encryptedPrefix = "k8s:enc:"
	rawPrefix       = "byre:raw:"
	// prefixColons is how many colons a readable prefix has.
	prefixColons = 5
)

// sealer encrypts and decrypts values.
type sealer struct {
	transformer value.Transformer
	// plain is true when the Store encrypts nothing. It still recognises encrypted
	// values, and refuses them with an error that says so.
	plain bool
}

func newSealer(transformer value.Transformer) sealer {
	if transformer == nil {
		return sealer{transformer: identity.NewEncryptCheckTransformer(), plain: true}
	}
	return sealer{transformer: transformer}
}

// seal encrypts an encoded object. path is the path under which the object is stored.
func (s *sealer) seal(ctx context.Context, data []byte, path string) ([]byte, error) {
	if s.plain {
		return data, nil
	}
	out, err := s.transformer.TransformToStorage(ctx, data, value.DefaultContext(path))
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(out, []byte("{")) {
		return out, nil
	}
	return WrapEncrypted(out), nil
}

// open is the reverse of seal. stale reports whether the value should be written again,
// because seal would now use another key or provider.
func (s *sealer) open(ctx context.Context, stored []byte, path string) (data []byte, stale bool, err error) {
	wrapped := IsWrapped(stored)
	if s.plain && !wrapped {
		return stored, false, nil
	}
	if wrapped {
		if stored, err = UnwrapEncrypted(stored); err != nil {
			return nil, false, err
		}
	}
	return s.transformer.TransformFromStorage(ctx, stored, value.DefaultContext(path))
}

// Decrypt returns the plain text of a Record's Value. transformer is the one of the
// object's resource, which may be nil, and path is the object's path in etcd's form.
func Decrypt(ctx context.Context, transformer value.Transformer, stored []byte, path string) ([]byte, error) {
	s := newSealer(transformer)
	data, _, err := s.open(ctx, stored, path)
	return data, err
}

// IsEncrypted reports whether bytes, in the form in which etcd has them, were written
// by a provider of an EncryptionConfiguration.
func IsEncrypted(sealed []byte) bool { return bytes.HasPrefix(sealed, []byte(encryptedPrefix)) }

// IsWrapped reports whether a Record's Value has the form that WrapEncrypted returns.
func IsWrapped(stored []byte) bool { return bytes.HasPrefix(stored, []byte(`"`)) }

// WrapEncrypted makes the Value of a Record from encrypted bytes. A Store can decrypt
// it if the object has the path with which it was encrypted. That path is the object's
// key in etcd, except for allocations.
func WrapEncrypted(sealed []byte) []byte {
	prefix := readablePrefix(sealed)
	rest := sealed[len(prefix):]
	if len(prefix) == 0 {
		prefix = []byte(rawPrefix)
	}
	out := make([]byte, 0, len(prefix)+base64.StdEncoding.EncodedLen(len(rest))+2)
	out = append(out, '"')
	out = append(out, prefix...)
	out = base64.StdEncoding.AppendEncode(out, rest)
	return append(out, '"')
}

// readablePrefix returns the leading "k8s:enc:<provider>:<version>:<key>:" if a JSON
// string can contain it without escapes, and otherwise nil.
func readablePrefix(sealed []byte) []byte {
	if !bytes.HasPrefix(sealed, []byte(encryptedPrefix)) {
		return nil
	}
	colons := 0
	for i, c := range sealed {
		switch {
		case c < ' ' || c > '~' || c == '"' || c == '\\':
			return nil
		case c == ':':
			colons++
		}
		if colons == prefixColons {
			return sealed[:i+1]
		}
	}
	return nil
}

var errNotSealed = errors.New("a stored string is not an encrypted value")

// UnwrapEncrypted is the reverse of WrapEncrypted.
func UnwrapEncrypted(stored []byte) ([]byte, error) {
	var text string
	if err := json.Unmarshal(stored, &text); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotSealed, err)
	}
	prefix := readablePrefix([]byte(text))
	rest := text[len(prefix):]
	if len(prefix) == 0 {
		var ok bool
		if rest, ok = strings.CutPrefix(text, rawPrefix); !ok {
			return nil, errNotSealed
		}
	}
	raw, err := base64.StdEncoding.AppendDecode(bytes.Clone(prefix), []byte(rest))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotSealed, err)
	}
	return raw, nil
}
