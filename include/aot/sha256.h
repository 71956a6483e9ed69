/* SHA-256 (FIPS 180-4). */

typedef struct aot__sha256 {
  uint32_t state[8];
  uint64_t length;
  unsigned char block[64];
  size_t held;
} aot__sha256;

static const uint32_t aot__sha256_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static inline uint32_t aot__rotate(uint32_t value, int by) { return value >> by | value << (32 - by); }

/* One round on the words from `first` on, counted modulo 8. */
static inline void aot__sha256_round(uint32_t *s, int first, uint32_t word, uint32_t constant) {
  uint32_t a = s[first & 7], b = s[(first + 1) & 7], c = s[(first + 2) & 7], e = s[(first + 4) & 7];
  uint32_t mixed = aot__rotate(e, 6) ^ aot__rotate(e, 11) ^ aot__rotate(e, 25);
  uint32_t chosen = (e & s[(first + 5) & 7]) ^ (~e & s[(first + 6) & 7]);
  uint32_t sum = s[(first + 7) & 7] + mixed + chosen + constant + word;
  s[(first + 3) & 7] += sum;
  s[(first + 7) & 7] = sum + (aot__rotate(a, 2) ^ aot__rotate(a, 13) ^ aot__rotate(a, 22)) +
                       ((a & b) ^ (a & c) ^ (b & c));
}

static void aot__sha256_block(aot__sha256 *sha, const unsigned char *data) {
  uint32_t w[64], s[8];
  int i;
  for (i = 0; i < 16; i++)
    w[i] = (uint32_t)data[4 * i] << 24 | (uint32_t)data[4 * i + 1] << 16 | (uint32_t)data[4 * i + 2] << 8 |
           data[4 * i + 3];
  for (i = 16; i < 64; i++) {
    uint32_t a = aot__rotate(w[i - 15], 7) ^ aot__rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
    uint32_t b = aot__rotate(w[i - 2], 17) ^ aot__rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  memcpy(s, sha->state, sizeof s);
  /* Eight rounds turn the roles of the eight words once around, so that none has to move. */
  for (i = 0; i < 64; i += 8) {
    aot__sha256_round(s, 0, w[i], aot__sha256_constants[i]);
    aot__sha256_round(s, 7, w[i + 1], aot__sha256_constants[i + 1]);
    aot__sha256_round(s, 6, w[i + 2], aot__sha256_constants[i + 2]);
    aot__sha256_round(s, 5, w[i + 3], aot__sha256_constants[i + 3]);
    aot__sha256_round(s, 4, w[i + 4], aot__sha256_constants[i + 4]);
    aot__sha256_round(s, 3, w[i + 5], aot__sha256_constants[i + 5]);
    aot__sha256_round(s, 2, w[i + 6], aot__sha256_constants[i + 6]);
    aot__sha256_round(s, 1, w[i + 7], aot__sha256_constants[i + 7]);
  }
  for (i = 0; i < 8; i++) sha->state[i] += s[i];
}

static void aot__sha256_start(aot__sha256 *sha) {
  static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memset(sha, 0, sizeof *sha);
  memcpy(sha->state, start, sizeof start);
}

static void aot__sha256_add(aot__sha256 *sha, const void *data, size_t size) {
  const unsigned char *bytes = (const unsigned char *)data;
  sha->length += size;
  while (size) {
    size_t part = 64 - sha->held;
    if (!sha->held && size >= 64) {
      aot__sha256_block(sha, bytes);
      part = 64;
    } else {
      if (part > size) part = size;
      memcpy(sha->block + sha->held, bytes, part);
      sha->held += part;
      if (sha->held == 64) {
        aot__sha256_block(sha, sha->block);
        sha->held = 0;
      }
    }
    bytes += part;
    size -= part;
  }
}

/* Write the digest as 64 hexadecimal digits and a zero. */
static void aot__sha256_hex(aot__sha256 *sha, char hex[65]) {
  uint64_t bits = sha->length * 8;
  unsigned char end[8];
  int i;
  aot__sha256_add(sha, "\x80", 1);
  while (sha->held != 56) aot__sha256_add(sha, "", 1);
  for (i = 0; i < 8; i++) end[i] = (unsigned char)(bits >> (56 - 8 * i));
  aot__sha256_add(sha, end, 8);
  for (i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08x", (unsigned)sha->state[i]);
}

static void aot__sha256_of(const void *data, size_t size, char hex[65]) {
  aot__sha256 sha;
  aot__sha256_start(&sha);
  aot__sha256_add(&sha, data, size);
  aot__sha256_hex(&sha, hex);
}
