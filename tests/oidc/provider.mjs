// An OpenID provider for tests/oidc/run: oidc-provider with its own pages. Arguments: port, lifetime of access tokens in seconds, redirect URIs and post-logout
// redirect URIs, each with commas between them, the URI of back-channel logouts, and a file with its keys. Prints a line for each request for tokens, and for each
// back-channel logout.
import { readFileSync } from "node:fs";
import Provider from "oidc-provider";

const [port, seconds, callbacks, logouts, backChannel, keys] = process.argv.slice(2);
const provider = new Provider(`http://localhost:${port}`, {
  clients: [
    {
      client_id: "web",
      client_secret: "canary-of-the-client-web-0123456789",
      redirect_uris: callbacks.split(","),
      post_logout_redirect_uris: logouts.split(","),
      backchannel_logout_uri: backChannel,
      backchannel_logout_session_required: true,
      grant_types: ["authorization_code", "refresh_token"],
      response_types: ["code"],
    },
  ],
  cookies: { keys: ["not a secret"] },
  jwks: JSON.parse(readFileSync(keys, "utf8")),
  features: { devInteractions: { enabled: true }, rpInitiatedLogout: { enabled: true }, backchannelLogout: { enabled: true } },
  // The default dispatcher refuses to connect to loopback.
  fetch: (url, { dispatcher, ...options }) => fetch(url, options),
  issueRefreshToken: async () => true,
  rotateRefreshToken: true,
  pkce: { required: () => true },
  ttl: { AccessToken: Number(seconds), IdToken: 3600, RefreshToken: 3600, Session: 3600, Grant: 3600, Interaction: 600 },
});
provider.use(async (context, next) => {
  await next();
  if (context.path === "/token") console.log(`token ${context.oidc?.params?.grant_type} ${context.status}`);
});
provider.on("backchannel.success", () => console.log("back channel 200"));
provider.on("backchannel.error", (_context, error) => console.log(`back channel ${error.message}`));
provider.listen(Number(port), "127.0.0.1");
