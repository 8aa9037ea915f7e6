package auth

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"byre/sqlstore"
)

// trustedKeys names the public keys by which a server verifies credentials, by their
// SHA-256. It is stored in the database. A server compares it with its own keys at its
// start. The server does not start if it would refuse credentials that other servers,
// or an earlier start of itself, have issued.
type trustedKeys struct {
	// ClientCAs are the keys of the certificates in --client-ca-file.
	ClientCAs []string `json:"clientCAs"`
	// ServiceAccountKeys are the keys that verify tokens. SigningKey is the one of them
	// that signs.
	ServiceAccountKeys []string `json:"serviceAccountKeys"`
	SigningKey         string   `json:"serviceAccountSigningKey"`
}

// trustedKeysRecord is trustedKeys in the stored form: JSON with a kind, like an API
// object.
type trustedKeysRecord struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	trustedKeys
}

// TrustedKeysKey is the key of the record in the database. In a fork ("byre fork") the record of the
// database that it was made of is under SourceKeysKey.
var (
	TrustedKeysKey = sqlstore.Key{Group: "byre", Resource: "trusts", Owner: sqlstore.BuiltIn, Name: "trust"}
	SourceKeysKey  = sqlstore.Key{Group: "byre", Resource: "trusts", Owner: sqlstore.BuiltIn, Name: "source"}
)

// readTrustedKeys reads the keys of the files that authentication is configured with.
func readTrustedKeys(o AuthenticationOptions) (trustedKeys, error) {
	authorities, err := certutil.CertsFromFile(o.ClientCert.ClientCA)
	if err != nil {
		return trustedKeys{}, fmt.Errorf("--client-ca-file: %w", err)
	}
	cas, verifying := authorityFingerprints(authorities), sets.New[string]()
	if o.SigningEndpoint != "" {
		// The keys are those of the external signer, which rotates them itself.
		return trustedKeys{ClientCAs: cas}, nil
	}
	for _, file := range o.ServiceAccounts.KeyFiles {
		keys, err := keyFingerprints(file)
		if err != nil {
			return trustedKeys{}, fmt.Errorf("--service-account-key-file: %w", err)
		}
		verifying.Insert(keys...)
	}
	signing, err := signingFingerprint(o.SigningKeyFile)
	if err != nil {
		return trustedKeys{}, fmt.Errorf("--service-account-signing-key-file: %w", err)
	}
	return trustedKeys{ClientCAs: cas, ServiceAccountKeys: sets.List(verifying), SigningKey: signing}, nil
}

func authorityFingerprints(authorities []*x509.Certificate) []string {
	cas := sets.New[string]()
	for _, ca := range authorities {
		cas.Insert(fingerprintOf(ca.RawSubjectPublicKeyInfo))
	}
	return sets.List(cas)
}

// signingFingerprint is the fingerprint of the public key of the private key in a file.
// The file may have any form that kube-apiserver reads.
func signingFingerprint(file string) (string, error) {
	key, err := keyutil.PrivateKeyFromFile(file)
	if err != nil {
		return "", err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return "", fmt.Errorf("%s: a key of type %T can't sign", file, key)
	}
	der, err := x509.MarshalPKIXPublicKey(signer.Public())
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return fingerprintOf(der), nil
}

// keyFingerprints are the fingerprints of the public keys in a file, also if the file
// has the private keys.
func keyFingerprints(file string) ([]string, error) {
	keys, err := keyutil.PublicKeysFromFile(file)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, key := range keys {
		der, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, fingerprintOf(der))
	}
	return all, nil
}

func fingerprintOf(publicKey []byte) string {
	sum := sha256.Sum256(publicKey)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// check compares a server's own keys with those of the database. It accepts each step
// of a rotation in which the servers still accept each other's credentials: the two
// have a CA in common, and each verifies the tokens that the other signs.
func (own trustedKeys) check(stored trustedKeys) error {
	common := func(ca string) bool { return slices.Contains(stored.ClientCAs, ca) }
	switch {
	case !slices.ContainsFunc(own.ClientCAs, common):
		return &UntrustedKeyError{flag: "client-ca-file",
			reason: fmt.Sprintf("the CA has the key %s, the CA that the database was served with has %s",
				strings.Join(own.ClientCAs, " "), strings.Join(stored.ClientCAs, " "))}
	case own.SigningKey == "" || stored.SigningKey == "":
		return nil // an external signer's keys are not known here
	case !slices.Contains(stored.ServiceAccountKeys, own.SigningKey):
		return &UntrustedKeyError{flag: "service-account-signing-key-file",
			reason: fmt.Sprintf("service account tokens would be signed by %s, the database was served with %s",
				own.SigningKey, strings.Join(stored.ServiceAccountKeys, " "))}
	case !slices.Contains(own.ServiceAccountKeys, stored.SigningKey):
		return &UntrustedKeyError{flag: "service-account-key-file",
			reason: "no key verifies the service account tokens signed by " + stored.SigningKey}
	}
	return nil
}

// UntrustedKeyError says which of a server's own keys the other servers do not trust.
type UntrustedKeyError struct {
	// flag is the name of the flag that can give the key.
	flag   string
	reason string
}

// Error is one line for the operator.
func (e *UntrustedKeyError) Error() string { return e.reason }

// remedy says how an administrator gives the server the keys that the other servers
// have.
func (k *TrustedKeys) remedy(e *UntrustedKeyError) string {
	files := k.files[e.flag]
	isGenerated := func(file string) bool { return filepath.Dir(file) == filepath.Clean(k.certDir) }
	if slices.ContainsFunc(files, isGenerated) {
		return fmt.Sprintf("put the pki/ of the other servers, or a backup of it, in %s", k.certDir)
	}
	return fmt.Sprintf("--%s=%s does not name the keys of the other servers", e.flag, strings.Join(files, ","))
}

func (own trustedKeys) equal(other trustedKeys) bool {
	return slices.Equal(own.ClientCAs, other.ClientCAs) &&
		slices.Equal(own.ServiceAccountKeys, other.ServiceAccountKeys) && own.SigningKey == other.SigningKey
}

// TrustedKeys are the keys of a server, which it compares with those of the database.
type TrustedKeys struct {
	own       trustedKeys
	files     map[string][]string // that the keys were read from, by their flags
	certDir   string
	acceptNew bool
}

// ReadTrustedKeys reads the keys in the files of o. certDir is the directory of the server's
// own PKI; the files that no flag names are in it. With acceptNew the server may have other
// keys than the database.
func ReadTrustedKeys(o AuthenticationOptions, certDir string, acceptNew bool) (*TrustedKeys, error) {
	own, err := readTrustedKeys(o)
	if err != nil {
		return nil, err
	}
	return &TrustedKeys{own, keyFiles(o), certDir, acceptNew}, nil
}

func keyFiles(o AuthenticationOptions) map[string][]string {
	return map[string][]string{
		"client-ca-file":                   {o.ClientCert.ClientCA},
		"service-account-signing-key-file": {o.SigningKeyFile},
		"service-account-key-file":         o.ServiceAccounts.KeyFiles,
	}
}

// keyReader reads a record of the database, and keyStore also writes one.
type (
	keyReader interface {
		Get(ctx context.Context, key sqlstore.Key) (sqlstore.Record, int64, error)
	}
	keyStore interface {
		keyReader
		Commit(ctx context.Context, w sqlstore.Write) (sqlstore.Change, error)
	}
)

// CheckMissing returns an *UntrustedKeyError if a key that byre makes where there is none is missing in certDir, and
// the database was served with another one: Check would refuse the new key. The caller calls it before it makes keys,
// so that a start that is refused leaves no file where the administrator puts those of a backup.
func CheckMissing(
	ctx context.Context, database keyReader, o AuthenticationOptions, certDir string, acceptNew bool,
) error {
	stored, _, err := readRecord(ctx, database, TrustedKeysKey)
	if acceptNew || errors.Is(err, sqlstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, key := range []struct {
		file, flag string
		stored     []string
	}{
		{o.ClientCert.ClientCA, "client-ca-file", stored.ClientCAs},
		{o.SigningKeyFile, "service-account-signing-key-file", stored.ServiceAccountKeys},
	} {
		if _, err := os.Stat(key.file); !errors.Is(err, fs.ErrNotExist) ||
			filepath.Dir(key.file) != filepath.Clean(certDir) || len(key.stored) == 0 {
			continue
		}
		k := &TrustedKeys{files: keyFiles(o), certDir: certDir}
		return k.refuse(&UntrustedKeyError{flag: key.flag,
			reason: fmt.Sprintf("there is no %s, and the database was served with the key %s",
				key.file, strings.Join(key.stored, " "))})
	}
	return nil
}

// refuse adds to an error what an administrator can do.
func (k *TrustedKeys) refuse(e *UntrustedKeyError) error {
	return fmt.Errorf("%w: %s; if the old keys are not wanted any more, start with --accept-new-keys once", e, k.remedy(e))
}

// Check returns an *UntrustedKeyError if this server and the others would not accept each
// other's credentials, unless the server may have new keys. It also fails if the tokens of a fork
// would be those of the cluster that it was made of.
func (k *TrustedKeys) Check(ctx context.Context, database keyReader) error {
	if _, err := k.compare(ctx, database); err != nil {
		return err
	}
	source, _, err := readRecord(ctx, database, SourceKeysKey)
	if err == nil && slices.Contains(source.ServiceAccountKeys, k.own.SigningKey) && !k.acceptNew {
		return fmt.Errorf(
			"service account tokens would be signed by %s, a key of the cluster that this is a fork of: serve the fork with a --data-dir of its own", k.own.SigningKey)
	}
	if errors.Is(err, sqlstore.ErrNotFound) {
		return nil
	}
	return err
}

// readRecord returns the keys that a record has, and its revision. It fails with
// sqlstore.ErrNotFound.
func readRecord(ctx context.Context, database keyReader, key sqlstore.Key) (trustedKeys, int64, error) {
	record, _, err := database.Get(ctx, key)
	var stored trustedKeysRecord
	if err == nil {
		err = json.Unmarshal(record.Value, &stored)
	}
	if err != nil {
		return trustedKeys{}, 0, fmt.Errorf("read the keys of the database: %w", err)
	}
	return stored.trustedKeys, record.Revision, nil
}

// ReadClientCAs reads --client-ca-file again, which has been reloaded. Record must be called then, and not at the same
// time.
func (k *TrustedKeys) ReadClientCAs() error {
	authorities, err := certutil.CertsFromFile(k.files["client-ca-file"][0])
	if err == nil {
		k.own.ClientCAs = authorityFingerprints(authorities)
	}
	return err
}

// Record stores the keys for the servers that start later. The caller calls it when the server
// has started: the keys of a start that failed must not keep out the next one, which may be
// on another machine and have other keys. It fails as Check does: another server may have
// stored its keys meanwhile.
func (k *TrustedKeys) Record(ctx context.Context, database keyStore) error {
	for {
		write, err := k.compare(ctx, database)
		if err != nil || write == nil {
			return err
		}
		_, err = database.Commit(ctx, *write)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, sqlstore.ErrExists) && !errors.Is(err, sqlstore.ErrConflict) &&
			!errors.Is(err, sqlstore.ErrNotFound):
			return fmt.Errorf("keep the keys in the database: %w", err)
		}
	}
}

// compare returns the write by which the database gets the keys, or nil if it has them.
func (k *TrustedKeys) compare(ctx context.Context, database keyReader) (*sqlstore.Write, error) {
	value, err := json.Marshal(trustedKeysRecord{"byre/1", "Trust", k.own})
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	w := &sqlstore.Write{
		Op: sqlstore.Create, Key: TrustedKeysKey, Encoding: "byre/1", Value: value,
		Author: sqlstore.Author{User: "byre", Verb: "create"},
	}
	stored, revision, err := readRecord(ctx, database, TrustedKeysKey)
	if errors.Is(err, sqlstore.ErrNotFound) {
		return w, nil
	}
	if err != nil {
		return nil, err
	}
	if k.own.equal(stored) {
		return nil, nil
	}
	var untrusted *UntrustedKeyError
	if errors.As(k.own.check(stored), &untrusted) && !k.acceptNew {
		return nil, k.refuse(untrusted)
	}
	w.Op, w.Replaces, w.Author.Verb = sqlstore.Update, revision, "update"
	return w, nil
}
