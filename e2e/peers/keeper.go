package peers

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	kmsapi "k8s.io/kms/apis/v2"
	"k8s.io/kms/pkg/service"
)

// Keeper is a KMS v2 plugin that has its keys in memory.
type Keeper struct {
	server *grpc.Server
	ended  chan error

	mu     sync.Mutex
	keys   map[string]cipher.AEAD
	newest string
	used   int
}

// NewKeeper starts a keeper that listens at a Unix socket, with one key.
func NewKeeper(socket string) (*Keeper, error) {
	k := &Keeper{keys: map[string]cipher.AEAD{}, ended: make(chan error, 1)}
	if err := k.Rotate(); err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	k.server = grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(k.server, service.NewGRPCService(socket, 0, k))
	go func() { k.ended <- k.server.Serve(listener) }()
	return k, nil
}

// Close ends the service and returns the error with which it ended.
func (k *Keeper) Close() error {
	k.server.Stop()
	return <-k.ended
}

// Rotate makes a new key; the old ones still decrypt.
func (k *Keeper) Rotate() error {
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return err
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.newest = fmt.Sprintf("key-%d", len(k.keys)+1)
	k.keys[k.newest] = aead
	return nil
}

// Used returns the number of Encrypt requests.
func (k *Keeper) Used() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.used
}

// Status implements service.Service.
func (k *Keeper) Status(context.Context) (*service.StatusResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &service.StatusResponse{Version: "v2", Healthz: "ok", KeyID: k.newest}, nil
}

// Encrypt implements service.Service.
func (k *Keeper) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.used++
	sealed := k.keys[k.newest].Seal(nil, nil, data, nil)
	return &service.EncryptResponse{Ciphertext: sealed, KeyID: k.newest}, nil
}

// Decrypt implements service.Service.
func (k *Keeper) Decrypt(_ context.Context, _ string, r *service.DecryptRequest) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, ok := k.keys[r.KeyID]
	if !ok {
		return nil, fmt.Errorf("there is no key %q", r.KeyID)
	}
	return key.Open(nil, nil, r.Ciphertext, nil)
}
