package server

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	encryptionreload "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	encryptionmetrics "k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/apiserver/pkg/storage/value"

	"byre/apiserver/process"
)

// encryption is encryption at rest, by upstream's providers.
type encryption struct {
	transformers func(schema.GroupResource) value.Transformer
	checks       []process.HealthChecker
	// reload reads the configuration file again when it changes; nil without
	// --encryption-provider-config-automatic-reload.
	reload *encryptionreload.DynamicEncryptionConfigContent
}

// newEncryption reads the configuration file. Without a file, nothing is encrypted. The
// connections to key services, which upstream opens here, stay open until ctx ends, or the
// file is read again.
func newEncryption(ctx context.Context, o StoreOptions, serverID string) (encryption, error) {
	if o.EncryptionConfig == "" {
		return encryption{}, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(ctx, cancel) // the transformers of a file that is not read again end with the server
	loaded, err := encryptionconfig.LoadEncryptionConfig(ctx, o.EncryptionConfig, o.EncryptionReload, serverID)
	if err != nil {
		return encryption{}, fmt.Errorf("--encryption-provider-config %s: %w", o.EncryptionConfig, err)
	}
	encryptionmetrics.RecordEncryptionConfigLastConfigInfo(serverID, loaded.EncryptionFileContentHash)
	if !o.EncryptionReload {
		static := encryptionconfig.StaticTransformers(loaded.Transformers)
		return encryption{
			checks: loaded.HealthChecks,
			transformers: func(gr schema.GroupResource) value.Transformer {
				if !covered(loaded.Transformers, gr) {
					return nil
				}
				return static.TransformerForResource(gr)
			},
		}, nil
	}
	dynamic := encryptionconfig.NewDynamicTransformers(loaded.Transformers, loaded.HealthChecks[0], cancel, loaded.KMSCloseGracePeriod)
	return encryption{
		checks:       []process.HealthChecker{dynamic},
		transformers: dynamic.TransformerForResource,
		reload: encryptionreload.NewDynamicEncryptionConfiguration("encryption-provider-config-automatic-reload-controller",
			o.EncryptionConfig, dynamic, loaded.EncryptionFileContentHash, serverID),
	}, nil
}

// Transformers reads the encryption configuration file at path. The function it returns
// gives what decrypts the values of a resource; nil for a resource without a rule. The
// connections to key services stay open until ctx ends.
func Transformers(ctx context.Context, path string) (func(schema.GroupResource) value.Transformer, error) {
	e, err := newEncryption(ctx, StoreOptions{EncryptionConfig: path}, "")
	return e.transformers, err
}

// covered reports whether a rule of the configuration applies to the resource. The
// values of a resource without a rule are stored as they are, and are read without a
// transformer.
func covered(rules map[schema.GroupResource]value.Transformer, gr schema.GroupResource) bool {
	for _, rule := range []schema.GroupResource{gr, {Group: gr.Group, Resource: "*"}, {Group: "*", Resource: "*"}} {
		if rules[rule] != nil {
			return true
		}
	}
	return false
}
