package encoding

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

// Transformer encrypts and decrypts values.
type Transformer struct {
	value.Transformer
	// isPlain is true when nothing is encrypted. Encrypted values are still recognised, and
	// refused with an error that says so.
	isPlain bool
}

// NewTransformer makes a Transformer; nil means no encryption.
func NewTransformer(transformer value.Transformer) Transformer {
	if transformer == nil {
		return Transformer{identity.NewEncryptCheckTransformer(), true}
	}
	return Transformer{transformer, false}
}

// IsPlain reports whether nothing is encrypted.
func (t *Transformer) IsPlain() bool { return t.isPlain }

// Encrypt encrypts an encoded object. path is the path under which the object is stored.
func (t *Transformer) Encrypt(ctx context.Context, data []byte, path string) ([]byte, error) {
	if t.isPlain {
		return data, nil
	}
	out, err := t.TransformToStorage(ctx, data, value.DefaultContext(path))
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(out, []byte("{")) {
		return out, nil
	}
	return WrapEncrypted(out), nil
}

// Decrypt is the reverse of Encrypt. stale reports whether the value should be written again,
// because Encrypt would now use another key or provider.
func (t *Transformer) Decrypt(ctx context.Context, stored []byte, path string) (data []byte, stale bool, err error) {
	wrapped := IsWrapped(stored)
	if t.isPlain && !wrapped {
		return stored, false, nil
	}
	if wrapped {
		if stored, err = UnwrapEncrypted(stored); err != nil {
			return nil, false, err
		}
	}
	return t.TransformFromStorage(ctx, stored, value.DefaultContext(path))
}

// IsEncrypted reports whether bytes, in the form in which etcd has them, were written
// by a provider of an EncryptionConfiguration.
func IsEncrypted(encrypted []byte) bool { return bytes.HasPrefix(encrypted, []byte(encryptedPrefix)) }

// IsWrapped reports whether a Record's Value has the form that WrapEncrypted returns.
func IsWrapped(stored []byte) bool { return bytes.HasPrefix(stored, []byte(`"`)) }

// WrapEncrypted makes the Value of a Record from encrypted bytes. A Transformer can decrypt
// it if the object has the path with which it was encrypted. That path is the object's
// key in etcd, except for allocations.
func WrapEncrypted(encrypted []byte) []byte {
	prefix := ReadablePrefix(encrypted)
	rest := encrypted[len(prefix):]
	if len(prefix) == 0 {
		prefix = []byte(rawPrefix)
	}
	out := make([]byte, 0, len(prefix)+base64.StdEncoding.EncodedLen(len(rest))+2)
	out = append(out, '"')
	out = append(out, prefix...)
	out = base64.StdEncoding.AppendEncode(out, rest)
	return append(out, '"')
}

// ReadablePrefix returns the leading "k8s:enc:<provider>:<version>:<key>:" if a JSON
// string can contain it without escapes, and otherwise nil.
func ReadablePrefix(encrypted []byte) []byte {
	if !bytes.HasPrefix(encrypted, []byte(encryptedPrefix)) {
		return nil
	}
	colons := 0
	for i, c := range encrypted {
		switch {
		case c < ' ' || c > '~' || c == '"' || c == '\\':
			return nil
		case c == ':':
			colons++
		}
		if colons == prefixColons {
			return encrypted[:i+1]
		}
	}
	return nil
}

var errNotEncrypted = errors.New("a stored string is not an encrypted value")

// UnwrapEncrypted is the reverse of WrapEncrypted.
func UnwrapEncrypted(stored []byte) ([]byte, error) {
	var text string
	if err := json.Unmarshal(stored, &text); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotEncrypted, err)
	}
	prefix := ReadablePrefix([]byte(text))
	rest := text[len(prefix):]
	if len(prefix) == 0 {
		var ok bool
		if rest, ok = strings.CutPrefix(text, rawPrefix); !ok {
			return nil, errNotEncrypted
		}
	}
	raw, err := base64.StdEncoding.AppendDecode(bytes.Clone(prefix), []byte(rest))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotEncrypted, err)
	}
	return raw, nil
}
