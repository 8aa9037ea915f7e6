// Command image writes an OCI image of byre, for several platforms, without a container
// engine: an archive of an image layout, which podman, skopeo, crane and containerd read.
//
//	image -version 1.2.3 -created 1700000000 -output byre.oci.tar linux/amd64=PATH linux/arm/v7=PATH ...
//
// The image holds the static program with the licences that lie beside it, the certificate
// authorities of Mozilla, a user without rights, and /tmp: nothing else. The same programs give the same bytes.
package main
