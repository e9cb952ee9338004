package testenv

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Cloud is a server that answers as the metadata and token endpoints of AWS
// (EKS Pod Identity, web identity, instance), Azure (App Service) and Google
// (Compute Engine), for the environment of the test.
type Cloud struct {
	URL string

	mu     sync.Mutex
	life   time.Duration
	asked  map[string]int
	broken bool
}

// The secrets that a Cloud gives; a token's number is appended to it.
const (
	CloudAccessKey = "AKIDFAKE"
	CloudSecretKey = "fake-secret-key"
	CloudSession   = "fake/session+token=="
	CloudToken     = "cloud-token-"
)

// NewCloud starts a cloud whose identities last for life, and lets the
// environment lead to it and to no other one.
func NewCloud(t *testing.T, life time.Duration) *Cloud {
	t.Helper()
	c := &Cloud{life: life, asked: map[string]int{}}
	server := httptest.NewServer(http.HandlerFunc(c.answer))
	t.Cleanup(server.Close)
	c.URL = server.URL
	home := t.TempDir()
	for name, value := range map[string]string{
		"HOME": home, "AWS_CONFIG_FILE": filepath.Join(home, "none"), "AWS_SHARED_CREDENTIALS_FILE": filepath.Join(home, "none"),
		"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SESSION_TOKEN": "", "AWS_PROFILE": "", "AWS_DEFAULT_REGION": "", "AWS_WEB_IDENTITY_TOKEN_FILE": "",
		"AWS_REGION": "eu-central-1", "AWS_EC2_METADATA_SERVICE_ENDPOINT": c.URL,
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "", "AWS_CONTAINER_CREDENTIALS_FULL_URI": c.URL + "/aws/pod", "AWS_CONTAINER_AUTHORIZATION_TOKEN": "pod", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "",
		"IDENTITY_ENDPOINT": c.URL + "/azure", "IDENTITY_HEADER": "app-service", "AZURE_CLIENT_SECRET": "", "AZURE_FEDERATED_TOKEN_FILE": "", "AZURE_CLIENT_ID": "", "AZURE_TENANT_ID": "",
		"GCE_METADATA_HOST": strings.TrimPrefix(c.URL, "http://"), "GOOGLE_APPLICATION_CREDENTIALS": "",
	} {
		t.Setenv(name, value) // so that it is set back
		if value == "" {
			_ = os.Unsetenv(name)
		}
	}
	return c
}

// Break lets every request fail from now on, with an answer that holds a secret.
func (c *Cloud) Break() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = true
}

// Asked is how often a cloud ("aws", "azure", "google") gave an identity.
func (c *Cloud) Asked(cloud string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[cloud]
}

func (c *Cloud) answer(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	give := func(cloud, format string, args ...any) {
		c.asked[cloud]++
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, format, args...)
	}
	until := time.Now().Add(c.life)
	keys := fmt.Sprintf(`"AccessKeyId": %q, "SecretAccessKey": %q, "Token": %q, "Expiration": %q`, CloudAccessKey, CloudSecretKey, CloudSession, until.UTC().Format(time.RFC3339))
	path := r.URL.Path
	switch {
	case c.broken:
		http.Error(w, `{"error": "invalid_client", "error_description": "`+CloudSecretKey+`"}`, http.StatusBadRequest)
	case path == "/aws/pod" && r.Header.Get("Authorization") == "pod":
		give("aws", "{%s}", keys)
	case path == "/latest/api/token" && r.Method == http.MethodPut:
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
		_, _ = fmt.Fprint(w, "imds")
	case strings.HasSuffix(path, "/iam/security-credentials/") && r.Header.Get("X-Aws-Ec2-Metadata-Token") == "imds":
		_, _ = fmt.Fprint(w, "role")
	case strings.HasSuffix(path, "/iam/security-credentials/role") && r.Header.Get("X-Aws-Ec2-Metadata-Token") == "imds":
		give("aws", `{"Code": "Success", "Type": "AWS-HMAC", %s}`, keys)
	case strings.TrimSuffix(path, "/") == "/sts" && r.Method == http.MethodPost && r.PostFormValue("Action") == "AssumeRoleWithWebIdentity" && r.PostFormValue("WebIdentityToken") == "projected":
		give("aws", `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey><SessionToken>%s</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`,
			CloudAccessKey, CloudSecretKey, CloudSession, until.UTC().Format(time.RFC3339))
	case path == "/azure" && r.Header.Get("X-Identity-Header") == "app-service":
		give("azure", `{"access_token": %q, "expires_on": "%d", "resource": %q, "token_type": "Bearer"}`,
			CloudToken+r.URL.Query().Get("resource"), until.Unix(), r.URL.Query().Get("resource"))
	case strings.HasPrefix(path, "/computeMetadata/v1/instance/service-accounts/default/token") && r.Header.Get("Metadata-Flavor") == "Google":
		w.Header().Set("Metadata-Flavor", "Google")
		give("google", `{"access_token": %q, "expires_in": %d, "token_type": "Bearer"}`, CloudToken+r.URL.Query().Get("scopes"), int(c.life.Seconds()))
	case strings.HasPrefix(path, "/computeMetadata/"):
		w.Header().Set("Metadata-Flavor", "Google")
		_, _ = fmt.Fprint(w, "project")
	default:
		http.NotFound(w, r)
	}
}

// CheckAWSSignature fails where a query is not what AWS's version 4 signs, with
// the key of a Cloud, for a GET of host. Names of parameters are as signed.
func CheckAWSSignature(t *testing.T, query url.Values, host, service, region string) {
	t.Helper()
	date := query.Get("X-Amz-Date")
	if len(date) < 8 {
		t.Fatalf("no date in %v", query)
	}
	if at, err := time.Parse("20060102T150405Z", date); err != nil || time.Since(at).Abs() > time.Minute {
		t.Errorf("signed for %s", date)
	}
	scope := strings.Join([]string{date[:8], region, service, "aws4_request"}, "/")
	for name, want := range map[string]string{"X-Amz-Credential": CloudAccessKey + "/" + scope, "X-Amz-Security-Token": CloudSession, "X-Amz-Expires": "900", "X-Amz-SignedHeaders": "host"} {
		if got := query.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	signed := url.Values{}
	for name, values := range query {
		if name != "X-Amz-Signature" {
			signed[name] = values
		}
	}
	mac := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	hash := func(text string) string { sum := sha256.Sum256([]byte(text)); return hex.EncodeToString(sum[:]) }
	request := "GET\n/\n" + strings.ReplaceAll(signed.Encode(), "+", "%20") + "\nhost:" + host + "\n\nhost\n" + hash("")
	key := []byte("AWS4" + CloudSecretKey)
	for _, part := range strings.Split(scope, "/") {
		key = mac(key, part)
	}
	if want := hex.EncodeToString(mac(key, "AWS4-HMAC-SHA256\n"+date+"\n"+scope+"\n"+hash(request))); query.Get("X-Amz-Signature") != want {
		t.Errorf("the signature is %s, want %s", query.Get("X-Amz-Signature"), want)
	}
}
