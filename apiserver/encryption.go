package apiserver

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	encryptionreload "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/apiserver/pkg/storage/value"

	"byre/apiserver/health"
	"byre/apiserver/options"
)

// encryption is encryption at rest by upstream's providers.
type encryption struct {
	transformers func(schema.GroupResource) value.Transformer
	checks       []health.Checker
	// reload follows the file; nil unless asked for.
	reload *encryptionreload.DynamicEncryptionConfigContent
}

// newEncryption reads the file; with none it encrypts nothing. ctx bounds the
// connections to key services that upstream opens with construction.
func newEncryption(ctx context.Context, o options.StoreOptions, serverID string) (encryption, error) {
	if o.EncryptionConfig == "" {
		return encryption{}, nil
	}
	loaded, err := encryptionconfig.LoadEncryptionConfig(ctx, o.EncryptionConfig, o.EncryptionReload, serverID)
	if err != nil {
		return encryption{}, fmt.Errorf("--encryption-provider-config: %w", err)
	}
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
	// The first transformers end with ctx; those of later files have contexts of
	// their own.
	dynamic := encryptionconfig.NewDynamicTransformers(loaded.Transformers, loaded.HealthChecks[0], func() {}, loaded.KMSCloseGracePeriod)
	return encryption{
		checks:       []health.Checker{dynamic},
		transformers: dynamic.TransformerForResource,
		reload: encryptionreload.NewDynamicEncryptionConfiguration("encryption-provider-config-automatic-reload-controller",
			o.EncryptionConfig, dynamic, loaded.EncryptionFileContentHash, serverID),
	}, nil
}

// Transformers returns what decrypts the values of a resource with the keys of a
// configuration file; nil for a resource without a rule. ctx bounds the connections to key
// services, which stay open until it ends.
func Transformers(ctx context.Context, path string) (func(schema.GroupResource) value.Transformer, error) {
	e, err := newEncryption(ctx, options.StoreOptions{EncryptionConfig: path}, "")
	return e.transformers, err
}

// covered reports whether a rule of the configuration applies to the resource. A resource
// without a rule is stored as it is, and is read without a transformer.
func covered(rules map[schema.GroupResource]value.Transformer, gr schema.GroupResource) bool {
	for _, rule := range []schema.GroupResource{gr, {Group: gr.Group, Resource: "*"}, {Group: "*", Resource: "*"}} {
		if rules[rule] != nil {
			return true
		}
	}
	return false
}
